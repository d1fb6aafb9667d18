/*
 * plover-load: dirties a known number of pages at a known rate.
 *
 *     plover-load PAGES HZ [SECONDS]
 *
 * Writes one word in each of PAGES pages, HZ times a second, for SECONDS (default: until killed). The
 * word is the number of the round, so two guests in step hold the same bytes. It prints nothing, because
 * the console is an output, too.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096 };

static unsigned long number(const char *text, const char *what)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);
	if (*text == '\0' || *end != '\0' || value == 0) {
		fprintf(stderr, "plover-load: %s must be a whole number above zero\n", what);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4) {
		fputs("usage: plover-load PAGES HZ [SECONDS]\n", stderr);
		return 2;
	}
	unsigned long pages = number(argv[1], "PAGES"), hz = number(argv[2], "HZ");
	unsigned long rounds = argc == 4 ? number(argv[3], "SECONDS") * hz : 0;
	long period_ns = (long)(1000000000ul / hz);

	volatile char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("plover-load");
		return 1;
	}

	/* Absolute times: after a pause of the guest the rounds catch up. */
	struct timespec next;
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (uint64_t round = 1; rounds == 0 || round <= rounds; round++) {
		for (unsigned long page = 0; page < pages; page++)
			*(volatile uint64_t *)(memory + page * PAGE) = round;
		next.tv_nsec += period_ns;
		while (next.tv_nsec >= 1000000000l) {
			next.tv_nsec -= 1000000000l;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	return 0;
}
