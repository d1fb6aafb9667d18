/*
 * Prints the frequency of this host's time-stamp counter in kHz. "The clock" in README.md says why the
 * guest is told.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

/* Reads the clock and the counter at the same moment: the pair of many tries that took the least time. */
static void moment(uint64_t *ns, uint64_t *cycles)
{
	uint64_t tightest = UINT64_MAX;

	for (int i = 0; i < 100; i++) {
		struct timespec now;
		uint64_t before = __rdtsc();
		clock_gettime(CLOCK_MONOTONIC_RAW, &now);
		uint64_t after = __rdtsc();
		if (after - before < tightest) {
			tightest = after - before;
			*cycles = before + tightest / 2;
			*ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
		}
	}
}

int main(void)
{
	uint64_t ns[2], cycles[2];
	struct timespec pause = { 0, 200 * 1000 * 1000 };

	moment(&ns[0], &cycles[0]);
	nanosleep(&pause, NULL);
	moment(&ns[1], &cycles[1]);
	printf("%.0f\n", (double)(cycles[1] - cycles[0]) / (double)(ns[1] - ns[0]) * 1e6);
	return 0;
}
