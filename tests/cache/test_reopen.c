/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reopen.c - open an existing store while each call of the opening fails
 * once: a store that was closed cleanly, left by a crash, without its index, or
 * opened with a smaller cap.  The open succeeds or reports why, and the next
 * open finds all blocks.
 */
#include "tests/cache/script.h"
#include "tests/calls.h"

enum kind { CLEAN, CRASHED, NO_INDEX, SMALLER, KINDS };

static const char *const kinds[KINDS] = {"clean", "crashed", "no index",
					 "smaller"};

/* Make a store in which blocks 0 to 5 are durable, and then 1 and 2 removed. */
static void prepare(struct script *t, enum kind kind)
{
	char path[128];

	memset(t, 0, sizeof(*t));
	small_new(&t->s);
	t->s.config.io_retry = 5000000;
	if (kind == SMALLER)
		t->s.config.ssd = 64 << 20;
	small_must_open(&t->s);
	script_save(t, 0, 6);
	script_sync(t);
	script_remove(t, 1);
	script_remove(t, 2);
	script_sync(t);
	must(small_close(&t->s) == 0);
	t->s.config.ssd = 32 << 20;
	snprintf(path, sizeof(path), "%s/index/data.mdb", t->s.path);
	if (kind == NO_INDEX)
		must(unlink(path) == 0);
}

/* Leave the store as after a crash: kill a child process that saves blocks. */
static void crash(struct script *t)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		small_must_open(&t->s);
		script_save(t, 6, 8);
		kill(getpid(), SIGKILL);
	}
	must(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

/* Return whether blocks may be lost: a rebuilt index has only blocks from files
 * that can be read, and a smaller cap evicts. */
static bool may_lose(enum kind kind)
{
	return kind == SMALLER || calls_eio ||
	       (inject.failed && inject.error == EIO);
}

static void run(enum kind kind, int error, unsigned from, unsigned n)
{
	int fds = small_fds(), r;
	struct script t;

	prepare(&t, kind);
	if (kind == CRASHED)
		crash(&t);
	inject_arm(error, from, n);
	r = small_open(&t.s);
	must(r == 0 || t.s.cache || t.s.why);
	if (t.s.cache)
		must(small_close(&t.s) == 0);
	inject_disarm();
	must(small_fds() == fds);
	t.may_lose = may_lose(kind);
	small_must_open(&t.s);
	script_verify(&t);
	script_recovers(&t);
	script_end(&t);
	exit(0);
}

static unsigned sites(enum kind kind)
{
	struct script t;
	int pipes[2];
	unsigned n = 0;
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		prepare(&t, kind);
		if (kind == CRASHED)
			crash(&t);
		inject_arm(0, 0, 0);
		small_must_open(&t.s);
		must(small_close(&t.s) == 0);
		n = (unsigned)inject.seen;
		small_remove(&t.s);
		exit(write(pipes[1], &n, sizeof(n)) != sizeof(n));
	}
	assert_int_equal(read(pipes[0], &n, sizeof(n)), sizeof(n));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(pipes[0]);
	close(pipes[1]);
	return n;
}

static void a_store_that_cannot_be_opened_is_opened_later(void **state)
{
	static const int errors[] = {EIO, ENOSPC, EMFILE};
	struct batch batch = {0};
	unsigned all = 0, end, step;

	(void)state;
	for (enum kind kind = CLEAN; kind < KINDS; kind++) {
		end = sites(kind);
		assert_true(end > 20);
		all += end;
		/* most calls read prologues: let only every @step-th call
		 * fail */
		step = end / 100 + 1;
		for (unsigned n = 0; n < end; n += step)
			if (batch_fork(&batch, kinds[kind], n))
				run(kind, errors[n % 3], n, 1);
		for (unsigned n = 0; n < end; n += 7 * step)
			if (batch_fork(&batch, kinds[kind], n))
				run(kind, EIO, n, UINT32_MAX);
	}
	batch_end(&batch);
	print_message("%u calls, %u runs\n", all, batch.runs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_store_that_cannot_be_opened_is_opened_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
