/*
 * plover-storm-server: writes to a disk or a file on behalf of a client outside the guest.
 *
 *     plover-storm-server [-p PORT] [-s MIB] FILE
 *
 * The client is `plover-storm` (proof/lab). It decides what is written where, logs acknowledged writes
 * outside the guest, and checks what is read back. The server holds no state, so that a restarted guest
 * can be asked for the writes of an earlier one.
 *
 * Greets with `plover-storm 1 BLOCKS`, then takes one command a line:
 *
 *     write NUMBER BLOCK COUNT   COUNT blocks of 4 KiB from BLOCK on, as write NUMBER; no answer
 *     flush NUMBER               make earlier writes durable -> `durable NUMBER`
 *     read BLOCK COUNT           -> `data BYTES`, then the bytes on the disk
 *
 * A failure is answered by `error …`, and the connection is closed. Each connection has a thread of its
 * own, so they do not wait for each other.
 *
 * Each 512-byte sector describes itself: the words `PLVSTORM`, NUMBER, its own place, and 61 words of a
 * generator that starts from these two. So there is exactly one right content for each write, and a
 * sector that belongs to another write or place, or is damaged, is detected.
 *
 * It bypasses the page cache if the file system can (O_DIRECT), so that reads come from the disk.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <linux/fs.h>

enum { BLOCK = 4096, SECTOR = 512, WORDS = SECTOR / 8, COUNT_MAX = 16 };

static int disk;
static uint64_t blocks;

/* SplitMix64. */
static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static void fill(uint64_t *words, uint64_t number, uint64_t sector)
{
	uint64_t state = number * 0x2545f4914f6cdd1du ^ sector;

	memcpy(words, "PLVSTORM", 8);
	words[1] = htole64(number);
	words[2] = htole64(sector);
	for (int i = 3; i < WORDS; i++)
		words[i] = htole64(next(&state));
}

/* pwrite or pread of all bytes. */
static int transfer(int write, char *bytes, size_t length, off_t at)
{
	while (length > 0) {
		ssize_t done = write ? pwrite(disk, bytes, length, at) : pread(disk, bytes, length, at);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			if (done == 0)
				errno = EIO;
			return -1;
		}
		bytes += done;
		length -= (size_t)done;
		at += done;
	}
	return 0;
}

/* Runs one command; an answer goes to `out`. Returns 0, or -1 if the connection must end. */
static int command(const char *line, char *buffer, FILE *out)
{
	uint64_t number, block, count;
	int end = -1;

	if (sscanf(line, "flush %lu%n", &number, &end) == 1 && line[end] == '\n') {
		if (fdatasync(disk) < 0)
			goto failed;
		fprintf(out, "durable %lu\n", number);
		return fflush(out);
	}
	int write = sscanf(line, "write %lu %lu %lu%n", &number, &block, &count, &end) == 3;
	if (!write && sscanf(line, "read %lu %lu%n", &block, &count, &end) != 2) {
		fprintf(out, "error: no such command\n");
		return -1;
	}
	if (line[end] != '\n' || count == 0 || count > COUNT_MAX || block >= blocks ||
	    count > blocks - block) {
		fprintf(out, "error: not 1 to %d blocks of the %lu there are\n", COUNT_MAX, blocks);
		return -1;
	}
	if (write) {
		uint64_t first = block * (BLOCK / SECTOR), sectors = count * (BLOCK / SECTOR);
		for (uint64_t i = 0; i < sectors; i++)
			fill((uint64_t *)(void *)(buffer + i * SECTOR), number, first + i);
	}
	if (transfer(write, buffer, count * BLOCK, (off_t)(block * BLOCK)) < 0)
		goto failed;
	if (!write) {
		fprintf(out, "data %lu\n", count * BLOCK);
		fwrite(buffer, BLOCK, count, out);
		return fflush(out);
	}
	return 0;
failed:
	fprintf(out, "error: %.*s: %s\n", (int)strcspn(line, "\n"), line, strerror(errno));
	return -1;
}

static void *serve(void *argument)
{
	int socket = (int)(intptr_t)argument;
	char line[128], *buffer = NULL;
	FILE *in = fdopen(socket, "r"), *out = fdopen(dup(socket), "w");

	if (in && out && posix_memalign((void **)&buffer, BLOCK, COUNT_MAX * BLOCK) == 0) {
		fprintf(out, "plover-storm 1 %lu\n", blocks);
		fflush(out);
		while (fgets(line, sizeof line, in) && command(line, buffer, out) == 0)
			;
	}
	free(buffer);
	if (out)
		fclose(out);
	if (in)
		fclose(in);
	return NULL;
}

static void die(const char *what)
{
	fprintf(stderr, "plover-storm-server: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Opens the disk, or makes the file, and finds its size. */
static void open_disk(const char *path, unsigned long mib)
{
	struct stat info;
	uint64_t bytes;

	disk = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
	if (disk < 0 && errno == EINVAL)
		disk = open(path, O_RDWR | O_CREAT, 0600);
	if (disk < 0 || fstat(disk, &info) < 0)
		die(path);
	if (S_ISBLK(info.st_mode)) {
		if (ioctl(disk, BLKGETSIZE64, &bytes) < 0)
			die(path);
	} else {
		bytes = (uint64_t)mib << 20;
		if (ftruncate(disk, (off_t)bytes) < 0)
			die(path);
	}
	blocks = bytes / BLOCK;
}

int main(int argc, char **argv)
{
	unsigned long port = 7788, mib = 32;
	int option, on = 1;

	while ((option = getopt(argc, argv, "p:s:")) != -1) {
		switch (option) {
		case 'p': port = strtoul(optarg, NULL, 10); break;
		case 's': mib = strtoul(optarg, NULL, 10); break;
		default: goto usage;
		}
	}
	if (optind + 1 != argc || port == 0 || port > 65535 || mib == 0)
		goto usage;
	signal(SIGPIPE, SIG_IGN);
	open_disk(argv[optind], mib);

	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 ||
	    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
	    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0 ||
	    bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 64) < 0)
		die("cannot listen");
	for (;;) {
		pthread_t thread;
		int socket = accept(listener, NULL, NULL);
		if (socket < 0)
			continue;
		if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)socket) != 0)
			close(socket);
		else
			pthread_detach(thread);
	}
usage:
	fputs("usage: plover-storm-server [-p PORT] [-s MIB] FILE\n", stderr);
	return 2;
}
