/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapped_segment.c - mapped segments of the daemon's arena, and attached memory.
 *
 * OWNS      the mappings, the sockets of lost connections that have mappings
 *           in use, and the list of memory to be detached.  Not the descriptors
 *           of segments: they are closed once mapped.
 *
 * STATES    of a mapping:
 *
 *              MAPPED -> RETIRED    kv_mapped_segment_retire_locked (by the
 *                                   daemon), ..._retire_all_locked (the
 *                                   connection has ended)
 *               (new) -> UNMAPPED   kv_mapped_segment_add_locked: no descriptor
 *                                   or memory; the daemon is informed
 *            UNMAPPED -> MAPPED     kv_mapped_segment_add_locked, next time
 *             RETIRED -> unmapped   with the last reference, once no device has
 *                                   it attached; the daemon is informed
 *
 *           of attached memory:
 *
 *             UNKNOWN -> ATTACHED   kv_attach_locked
 *            ATTACHED -> DETACHING  kv_detach_locked
 *           DETACHING -> UNKNOWN    run_detacher
 *
 * INVARIANTS
 *   (1) A mapping with references keeps its address, whatever the daemon does.
 *   (2) A retired mapping has references.
 *   (3) Mapped memory cannot be taken away: the segment is sealed against
 *       shrinking.  (F_SEAL_FUTURE_WRITE is not required: it protects other
 *       clients, and open segments do not have it.)
 *   (4) Memory is unmapped only when it is UNKNOWN: a device that has pinned it
 *       must not find other memory at its address.
 *   (5) Detaching takes long, so it runs on a thread without other work, with
 *       no lock held.
 *   (6) The socket of a connection that the daemon has cut, or will cut, is
 *       open while a mapping of the connection has references: until the socket
 *       is closed, the daemon does not use the leased memory again.
 *
 * LOCKING   all under session->lock.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/thread.h"
#include "kernels/device/device.h"
#include "kernels/session/session.h"

#define POPULATE_STEP ((uint64_t)8 << 20)

struct populate {
	struct kv_job job; /* first */
	struct kvfs_session *session;
	struct kv_mapped_segment *mapping;
};

/* Populate the page tables of a new mapping, on a copy thread, so that the
 * first load takes no page faults. */
static void populate(struct kv_job *job)
{
	struct populate *p = (struct populate *)job;
	struct kv_mapped_segment *m = p->mapping;
	uint64_t bytes;

	for (uint64_t at = 0; at < m->bytes; at += bytes) {
		bytes = KV_MIN(POPULATE_STEP, m->bytes - at);
		if (madvise((void *)(m->base + at), bytes, MADV_POPULATE_READ) <
		    0)
			break;
	}
	pthread_mutex_lock(&p->session->lock);
	kv_mapped_segment_put_locked(p->session, m);
	pthread_mutex_unlock(&p->session->lock);
	free(p);
}

/* Find the segment @id of the present connection. */
static struct kv_mapped_segment *find_locked(struct kvfs_session *session,
					     uint32_t id)
{
	uint64_t live = atomic_load(&session->live);
	struct kv_mapped_segment *m;

	kv_assert_locked(&session->lock);
	TAILQ_FOREACH(m, &session->mappings, others)
		if (m->id == id && m->generation == live)
			return m;
	return NULL;
}

static void tell_unmapped_locked(struct kvfs_session *session, uint32_t id)
{
	struct wire_segment segment = {.id = id};
	struct kv_packet packet = {
		.header = {.type = WIRE_UNMAPPED, .count = 1},
		.items = &segment,
		.bytes = sizeof(segment),
		.fd = -1,
	};

	kv_assert_locked(&session->lock);
	kv_rpc_post_locked(session, &packet);
}

/* Map the segment in @fd read-only, as @m.
 * -EIO: the daemon sent a segment that is too short or not sealed
 * -ENOMEM, errors of mmap(2): limits of this process */
static int map_locked(struct kvfs_session *session, struct kv_mapped_segment *m,
		      int fd)
{
	const int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
	struct populate *p;
	struct stat st;
	void *base;

	kv_assert_locked(&session->lock);
	if (m->bytes == 0 || seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    fstat(fd, &st) < 0 || (uint64_t)st.st_size < m->bytes)
		return -EIO;
	base = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	madvise(base, m->bytes, MADV_DONTFORK);
	m->base = base;
	kv_attach_locked(session, &m->attached, base, m->bytes, false);
	p = session->copier ? malloc(sizeof(*p)) : NULL;
	if (p) {
		*p = (struct populate){{.run = populate}, session, m};
		m->refs++;
		kv_copier_submit(session->copier, &p->job);
	}
	return 0;
}

void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd,
				  bool lost)
{
	struct kv_mapped_segment *m = find_locked(session, segment->id);

	kv_assert_locked(&session->lock);
	if (m && m->base)
		return;
	if (!m) {
		m = calloc(1, sizeof(*m));
		if (!m)
			return;
		m->kept = -1;
		m->id = segment->id;
		m->generation = atomic_load(&session->live);
		TAILQ_INSERT_HEAD(&session->mappings, m, others);
	}
	m->bytes = segment->bytes;
	m->error = lost ? -EMFILE : map_locked(session, m, fd);
	/* Blocks of an UNMAPPED segment fail with the error until the daemon
	 * sends the segment again. */
	if (m->error == -EIO) {
		TAILQ_REMOVE(&session->mappings, m, others);
		free(m);
	} else if (m->error < 0) {
		tell_unmapped_locked(session, m->id);
	}
}

static void gone_locked(struct kvfs_session *session,
			struct kv_mapped_segment *m)
{
	kv_assert_locked(&session->lock);
	if (m->base && kv_session_is_live(session, m->generation))
		tell_unmapped_locked(session, m->id);
	free(m);
}

static void segment_detached(struct kvfs_session *session,
			     struct kv_attached *attached)
{
	struct kv_mapped_segment *m =
		kv_container(attached, struct kv_mapped_segment, attached);

	munmap((void *)m->base, m->bytes);
	pthread_mutex_lock(&session->lock);
	gone_locked(session, m);
	pthread_mutex_unlock(&session->lock);
}

/* Have a mapping of the lost connection @generation keep the connection's socket
 * @fd (-1: none).  Close the socket if there is no such mapping. */
static void keep_locked(struct kvfs_session *session, uint64_t generation,
			int fd)
{
	struct kv_mapped_segment *m;

	kv_assert_locked(&session->lock);
	TAILQ_FOREACH(m, &session->mappings, others)
		if (m->generation == generation)
			break;
	if (m && fd >= 0)
		m->kept = kv_steal_fd(&fd);
	kv_closep(&fd);
}

static void unmap_locked(struct kvfs_session *session,
			 struct kv_mapped_segment *m)
{
	kv_assert_locked(&session->lock);
	TAILQ_REMOVE(&session->mappings, m, others);
	keep_locked(session, m->generation, m->kept);
	if (kv_detach_locked(session, &m->attached, segment_detached))
		return;
	if (m->base)
		munmap((void *)m->base, m->bytes);
	gone_locked(session, m);
}

void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id)
{
	struct kv_mapped_segment *m = find_locked(session, id);

	kv_assert_locked(&session->lock);
	if (!m) {
		tell_unmapped_locked(session, id);
		return;
	}
	/* UNMAPPED: the daemon was already informed that it is not mapped. */
	if (!m->base)
		return;
	m->retired = true;
	if (m->refs == 0)
		unmap_locked(session, m);
}

void kv_mapped_segment_retire_all_locked(struct kvfs_session *session, int fd)
{
	struct kv_mapped_segment *m, *next;

	kv_assert_locked(&session->lock);
	for (m = TAILQ_FIRST(&session->mappings); m; m = next) {
		next = TAILQ_NEXT(m, others);
		m->retired = true;
		if (m->refs == 0)
			unmap_locked(session, m);
	}
	keep_locked(session, session->generations, fd);
}

int kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
				 uint64_t offset, uint64_t length,
				 struct kv_mapped_segment **ret_mapped)
{
	struct kv_mapped_segment *m = find_locked(session, id);

	kv_assert_locked(&session->lock);
	if (!m || m->error < 0)
		return m ? m->error : -EIO;
	if (length > m->bytes || offset > m->bytes - length)
		return -EIO;
	m->refs++;
	*ret_mapped = m;
	return 0;
}

void kv_mapped_segment_put_locked(struct kvfs_session *session,
				  struct kv_mapped_segment *mapping)
{
	kv_assert_locked(&session->lock);
	assert(mapping->refs > 0);
	if (--mapping->refs == 0 && mapping->retired)
		unmap_locked(session, mapping);
}

/* ---- memory attached to a device ---- */

void kv_attach_locked(struct kvfs_session *session, struct kv_attached *a,
		      const void *base, uint64_t bytes, bool writable)
{
	kv_assert_locked(&session->lock);
	if (!session->attacher || a->device)
		return;
	a->device = session->attacher;
	a->base = (void *)base;
	a->device->attach(a->base, bytes, writable);
	kv_attach_ask_locked(session);
}

void kv_attach_ask_locked(struct kvfs_session *session)
{
	const struct kvfs_device *device = session->attacher;
	const uint64_t live = atomic_load(&session->live);

	kv_assert_locked(&session->lock);
	if (live == 0 || live == session->asked_open || !device ||
	    !device->needs_writable || !device->needs_writable())
		return;
	session->asked_open = live;
	kv_rpc_post_tag_locked(session, WIRE_REGISTERS, 0);
}

/* Detach memory from devices, which may take long, until kv_attach_end. */
static void *run_detacher(void *arg)
{
	struct kvfs_session *session = arg;
	struct kv_attached *a;

	pthread_mutex_lock(&session->lock);
	while ((a = TAILQ_FIRST(&session->detaching)) || session->attacher) {
		if (!a) {
			kv_session_wait_for(session, &session->detach,
					    UINT64_MAX);
			continue;
		}
		TAILQ_REMOVE(&session->detaching, a, others);
		pthread_mutex_unlock(&session->lock);
		a->device->detach(a->base);
		a->device = NULL;
		a->detached(session, a);
		pthread_mutex_lock(&session->lock);
	}
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

int kv_attach_device_locked(struct kvfs_session *session,
			    const struct kvfs_device *device)
{
	struct kv_mapped_segment *m;
	int r;

	kv_assert_locked(&session->lock);
	if (!session->attacher && device->attach) {
		r = kv_thread_start(&session->detacher, "kvfs-detach",
				    run_detacher, session);
		if (r < 0)
			return r;
		session->attacher = device;
		TAILQ_FOREACH(m, &session->mappings, others)
			if (m->base)
				kv_attach_locked(session, &m->attached, m->base,
						 m->bytes, false);
	}
	kv_attach_ask_locked(session);
	return 0;
}

bool kv_detach_locked(struct kvfs_session *session, struct kv_attached *a,
		      void (*detached)(struct kvfs_session *session,
				       struct kv_attached *a))
{
	kv_assert_locked(&session->lock);
	if (!a->device)
		return false;
	a->detached = detached;
	TAILQ_INSERT_TAIL(&session->detaching, a, others);
	pthread_cond_signal(&session->detach);
	return true;
}

void kv_attach_end(struct kvfs_session *session)
{
	bool runs;

	pthread_mutex_lock(&session->lock);
	runs = session->attacher;
	session->attacher = NULL;
	pthread_cond_signal(&session->detach);
	pthread_mutex_unlock(&session->lock);
	if (runs)
		pthread_join(session->detacher, NULL);
}
