/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ingest.c - jobs for the ingest threads, and mail back from them.
 *
 * OWNS      its jobs and its mailbox.
 *
 * LOCKING   none: what a job wrote is read after its mail was run.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fs/control/ingest.h"
#include "fs/control/server.h"

enum { N = 2000 };

struct task {
	struct kv_ingest_job job; /* first */
	struct kv_mail mail;
	struct kv_mailbox *box;
	int done, delivered;
};

static struct task tasks[N];
static size_t delivered;

static void deliver(struct kv_mail *mail)
{
	struct task *task =
		(struct task *)((char *)mail - offsetof(struct task, mail));

	task->delivered++;
	delivered++;
}

static void work(struct kv_ingest_job *job, struct kv_hash *hash)
{
	struct task *task = (struct task *)job;

	kv_hash_begin(hash);
	task->done++;
	if (task->box)
		kv_mailbox_post(task->box, &task->mail);
}

static void every_job_runs_once_and_its_mail_arrives_once(void **state)
{
	struct kv_ingest *ingest;
	struct kv_mailbox box;

	(void)state;
	assert_int_equal(kv_mailbox_init(&box), 0);
	assert_int_equal(kv_ingest_start(&ingest), 0);
	for (size_t i = 0; i < N; i++) {
		tasks[i] = (struct task){
			.job.work = work, .mail.run = deliver, .box = &box};
		kv_ingest_add(ingest, &tasks[i].job);
	}
	for (delivered = 0; delivered < N;) {
		struct pollfd p = {.fd = box.fd, .events = POLLIN};

		assert_int_equal(poll(&p, 1, 10000), 1);
		kv_mailbox_run(&box);
	}
	for (size_t i = 0; i < N; i++)
		assert_true(tasks[i].done == 1 && tasks[i].delivered == 1);
	kv_ingest_stop(ingest);
	kv_mailbox_fini(&box);
}

static void stop_finishes_what_was_added(void **state)
{
	struct kv_ingest *ingest;

	(void)state;
	assert_int_equal(kv_ingest_start(&ingest), 0);
	for (size_t i = 0; i < N; i++) {
		tasks[i] = (struct task){.job.work = work};
		kv_ingest_add(ingest, &tasks[i].job);
	}
	kv_ingest_stop(ingest);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(tasks[i].done, 1);
	kv_ingest_stop(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_job_runs_once_and_its_mail_arrives_once),
		cmocka_unit_test(stop_finishes_what_was_added),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
