/*
 * racey: two threads race on an array without locks, on purpose.
 *
 * The check of PLOVER section 6.1. A program whose result depends on the exact interleaving of its
 * threads is the hardest load for a replicated guest. Leader and secondary compute different signatures
 * from the same input, so their memories diverge in every slot. Only a syncvm that finds and copies
 * *every* divergent page makes them equal again. The idea is from Hill and Xu's "Racey: a stress test for
 * deterministic execution" (2009); the code is ours.
 *
 *     racey [-n RUNS] [-r ROUNDS] [-f FILE]
 *
 * Runs RUNS times (default 1; 0: until killed). Each run appends a line to FILE (default
 * /tmp/racey.out): the number of the run and the signature.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 2, CELLS = 64, PAGE = 4096 };

/*
 * One cell a page: a lost or stale page gives a wrong signature by itself, and one run dirties CELLS
 * pages. `volatile` makes every step a real load and a real store.
 */
static volatile struct { uint32_t value; char pad[PAGE - sizeof(uint32_t)]; }
    cells[CELLS] __attribute__((aligned(4096)));
static volatile uint32_t signatures[THREADS];
static volatile int running;
static unsigned long rounds = 20000;

static uint32_t mix(uint32_t a, uint32_t b)
{
	uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(x >> 29);
}

static void *racer(void *argument)
{
	unsigned me = (unsigned)(uintptr_t)argument;
	uint32_t state = me + 1;

	/* Start together. Yield, because with one vCPU the other thread cannot run otherwise. */
	__atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
	while (running < THREADS)
		sched_yield();

	for (unsigned long i = 0; i < rounds; i++) {
		unsigned from = state % CELLS, to = (state >> 8) % CELLS;
		/* The race: read, compute and write back, without any ordering. */
		state = mix(cells[from].value ^ state, cells[to].value + me);
		cells[to].value = state;
		/* With one vCPU there is no race without switches: switch at some racy places. */
		if (state % 1024 == 0)
			sched_yield();
	}
	signatures[me] = state;
	return NULL;
}

static void usage(void)
{
	fputs("usage: racey [-n RUNS] [-r ROUNDS] [-f FILE]\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	unsigned long runs = 1;
	const char *path = "/tmp/racey.out";
	int option;

	while ((option = getopt(argc, argv, "n:r:f:")) != -1) {
		switch (option) {
		case 'n': runs = strtoul(optarg, NULL, 0); break;
		case 'r': rounds = strtoul(optarg, NULL, 0); break;
		case 'f': path = optarg; break;
		default: usage();
		}
	}
	if (optind != argc)
		usage();

	for (unsigned long run = 1; runs == 0 || run <= runs; run++) {
		pthread_t threads[THREADS];

		for (unsigned i = 0; i < CELLS; i++)
			cells[i].value = mix(i, (uint32_t)run);
		running = 0;
		for (uintptr_t i = 0; i < THREADS; i++) {
			if (pthread_create(&threads[i], NULL, racer, (void *)i) != 0) {
				fputs("racey: cannot start a thread\n", stderr);
				return 1;
			}
		}
		uint32_t signature = 0;
		for (unsigned i = 0; i < THREADS; i++) {
			pthread_join(threads[i], NULL);
			signature = mix(signature, signatures[i]);
		}
		for (unsigned i = 0; i < CELLS; i++)
			signature = mix(signature, cells[i].value);

		FILE *file = fopen(path, "a");
		if (file == NULL || fprintf(file, "%lu %08x\n", run, signature) < 0 ||
		    fclose(file) != 0) {
			perror(path);
			return 1;
		}
	}
	return 0;
}
