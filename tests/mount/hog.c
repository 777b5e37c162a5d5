/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hog.c - open files until that fails, print their number and the error, and hold them
 * until standard input ends.
 *
 *     hog open PATH     open PATH repeatedly
 *     hog write STEM    files STEM and 30 digits, one byte in each
 *
 * OWNS      its descriptors, and child processes for more descriptors than one process may
 *           have.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int take(const char *how, const char *path, unsigned n)
{
	char name[4096];
	int fd;

	if (strcmp(how, "write") != 0)
		return open(path, O_RDONLY) < 0 ? -errno : 0;
	snprintf(name, sizeof(name), "%s%030x", path, n + 4096);
	fd = open(name, O_WRONLY | O_CREAT, 0600);
	return fd < 0 || write(fd, "x", 1) != 1 ? -errno : 0;
}

static void wait_for_end_of_input(void)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
}

/* Open files from number @n on in a child process.  Return the number of open
 * files. */
static unsigned take_all(const char *how, const char *path, unsigned n,
			 int *ret_why)
{
	struct outcome {
		unsigned n;
		int why;
	} outcome = {n, 0};
	int pair[2];

	if (pipe(pair) < 0)
		return n;
	if (fork() == 0) {
		while ((outcome.why = take(how, path, outcome.n)) == 0)
			outcome.n++;
		if (write(pair[1], &outcome, sizeof(outcome)) < 0)
			_exit(1);
		wait_for_end_of_input();
		_exit(0);
	}
	if (read(pair[0], &outcome, sizeof(outcome)) != sizeof(outcome))
		exit(1);
	close(pair[0]);
	close(pair[1]);
	*ret_why = outcome.why;
	return outcome.n;
}

int main(int argc, char **argv)
{
	int why = -EMFILE;
	unsigned n = 0;

	if (argc != 3)
		return 2;
	while (why == -EMFILE)
		n = take_all(argv[1], argv[2], n, &why);
	printf("%u %s\n", n, strerrorname_np(-why));
	fflush(stdout);
	wait_for_end_of_input();
	while (wait(NULL) > 0)
		;
	return 0;
}
