/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - the session's reader thread: keeps it connected, takes what the
 * daemon sends, and fires timers.
 *
 * OWNS      session->link: nobody else opens or closes it.
 *
 * STATES    of the connection:
 *
 *              DOWN -> LIVE   connect_again
 *              LIVE -> DOWN   disconnect (the daemon went away, or sent what
 *                             is no message)
 *
 * INVARIANTS
 *   (1) session->live is the connection's number while it is LIVE, else 0;
 *       numbers are not used twice.
 *   (2) Nothing of a connection outlives it but mappings in use: all requests
 *       have ended when DOWN is seen.
 *
 * LOCKING   receive_lock, then session->lock; neither is held while sleeping
 *           or connecting.
 */
#include <poll.h>
#include <sys/eventfd.h>

#include "kernels/transfer/partial_block.h"
#include "kernels/transfer/save.h"
#include "kernels/session/session.h"
#include "kernels/transfer/stage.h"

#define RETRY_FIRST_NS 5000000u
#define RETRY_LAST_NS 1000000000u

struct retry {
	uint64_t at; /* kv_now_ns */
	uint64_t wait;
};

static void disconnect(struct kvfs_session *session)
{
	pthread_mutex_lock(&session->receive_lock);
	pthread_mutex_lock(&session->lock);
	atomic_store(&session->live, 0);
	kv_link_close(&session->link);
	session->broken = false;
	kv_stage_abandon(kv_steal(session->stage));
	kv_rpc_break_locked(session);
	kv_mapped_segment_retire_all_locked(session);
	kv_parts_break_locked(session);
	kv_save_pump_locked(session);
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	pthread_mutex_unlock(&session->receive_lock);
}

static void connect_again(struct kvfs_session *session, struct retry *retry)
{
	struct kv_link link = {.fd = -1};
	char path[KV_SOCKET_PATH_MAX];
	int r;

	r = kv_link_find(session->path, path);
	if (r == 0)
		r = kv_link_open(path, &link);
	pthread_mutex_lock(&session->receive_lock);
	pthread_mutex_lock(&session->lock);
	if (r == 0) {
		strcpy(session->socket_path, path);
		session->link = link;
		atomic_store(&session->live, ++session->generations);
	}
	session->tried = true;
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	pthread_mutex_unlock(&session->receive_lock);
	retry->wait = r == 0 ? RETRY_FIRST_NS
			     : KV_MIN(retry->wait * 2, RETRY_LAST_NS);
	retry->at = kv_now_ns() + retry->wait;
}

/* Everything that has come, or -errno if the connection is of no more use. */
static int receive_all(struct kvfs_session *session)
{
	int r;

	pthread_mutex_lock(&session->receive_lock);
	do
		r = kv_rpc_receive(session);
	while (r > 0);
	pthread_mutex_unlock(&session->receive_lock);
	return r;
}

static int poll_ms(uint64_t until)
{
	uint64_t now = kv_now_ns();

	if (until == UINT64_MAX)
		return -1;
	if (until <= now)
		return 0;
	return (int)KV_MIN((until - now + 999999) / 1000000, 60000u);
}

/* Sleep until something is to be done; -errno if the connection is broken. */
static int wait_and_receive(struct kvfs_session *session, uint64_t until,
			    bool writes)
{
	struct pollfd fds[2] = {
		{.fd = session->wake_fd, .events = POLLIN},
		{.fd = session->link.fd,
		 .events = POLLIN | (writes ? POLLOUT : 0)},
	};
	eventfd_t ignored;

	if (poll(fds, KV_ARRAY_LEN(fds), poll_ms(until)) <= 0)
		return 0;
	if (fds[0].revents)
		eventfd_read(session->wake_fd, &ignored);
	return receive_all(session);
}

void *kv_reader_run(void *arg)
{
	struct kvfs_session *session = arg;
	struct retry retry = {.wait = RETRY_FIRST_NS};
	uint64_t until;
	bool writes;

	for (;;) {
		if (session->link.fd < 0 && kv_now_ns() >= retry.at)
			connect_again(session, &retry);
		pthread_mutex_lock(&session->lock);
		if (session->closing)
			break;
		until = kv_timers_run_locked(session);
		writes = session->link.fd >= 0 &&
			 kv_rpc_push_locked(session) > 0;
		if (session->link.fd < 0)
			until = KV_MIN(until, retry.at);
		session->sleeps_until = until;
		pthread_mutex_unlock(&session->lock);
		if (wait_and_receive(session, until, writes) < 0)
			disconnect(session);
	}
	pthread_mutex_unlock(&session->lock);
	disconnect(session);
	return NULL;
}
