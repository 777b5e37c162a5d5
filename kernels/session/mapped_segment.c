/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapped_segment.c - the arena segments that the daemon has handed us, mapped
 * for reading.
 *
 * OWNS      the mappings.  Not the descriptors: those are closed once mapped.
 *
 * STATES    of a mapping:
 *
 *              MAPPED -> RETIRED    kv_mapped_segment_retire_locked (by the
 *                                   daemon), or ..._retire_all_locked (it is
 *                                   gone)
 *              (came) -> UNMAPPED   cannot_map_locked: there is no descriptor
 *                                   or memory for it; the daemon is told
 *            UNMAPPED -> MAPPED     kv_mapped_segment_add_locked: it came again
 *             RETIRED -> unmapped   with the last reference, once no device
 *                                   knows of it (attach.c); the daemon is told
 *                                   if it is still there
 *
 * INVARIANTS
 *   (1) A mapping with references stays where it is, whatever the daemon does.
 *   (2) A retired mapping has references.
 *   (3) Nothing behind a mapping can be taken away: it is sealed against
 *       shrinking.  (F_SEAL_FUTURE_WRITE protects other clients from us, and is
 *       absent from open segments; it is not ours to insist on.)
 *
 * LOCKING   all under session->lock.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "kernels/device/copier.h"
#include "kernels/session/mapped_segment.h"
#include "kernels/session/session.h"

#define POPULATE_STEP ((uint64_t)8 << 20)

struct populate {
	struct kv_job job; /* first */
	struct kvfs_session *session;
	struct kv_mapped_segment *mapping;
};

/* Page tables made ahead, so that the first load does not fault its way. */
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

static void populate_locked(struct kvfs_session *session,
			    struct kv_mapped_segment *mapping)
{
	struct populate *p;

	kv_assert_locked(&session->lock);
	if (!session->copier)
		return;
	p = malloc(sizeof(*p));
	if (!p)
		return;
	*p = (struct populate){{.run = populate}, session, mapping};
	mapping->refs++;
	kv_copier_submit(session->copier, &p->job);
}

static bool cannot_shrink(int fd, uint64_t bytes)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 &&
	       (uint64_t)st.st_size >= bytes;
}

/* In session->mappings, or in session->unmapped. */
static struct kv_mapped_segment *find_locked(struct kvfs_session *session,
					     struct kv_mapped_segments *list,
					     uint32_t id)
{
	uint64_t live = atomic_load(&session->live);
	struct kv_mapped_segment *m;

	kv_assert_locked(&session->lock);
	TAILQ_FOREACH(m, list, others)
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

/* Blocks in it are @error until it comes again. */
static void cannot_map_locked(struct kvfs_session *session, uint32_t id,
			      int error)
{
	struct kv_mapped_segment *m =
		find_locked(session, &session->unmapped, id);

	kv_assert_locked(&session->lock);
	if (!m) {
		m = calloc(1, sizeof(*m));
		if (!m)
			return;
		m->id = id;
		m->generation = atomic_load(&session->live);
		TAILQ_INSERT_HEAD(&session->unmapped, m, others);
	}
	m->error = error;
	tell_unmapped_locked(session, id);
}

static void forget_unmapped_locked(struct kvfs_session *session,
				   struct kv_mapped_segment *m)
{
	kv_assert_locked(&session->lock);
	if (m)
		TAILQ_REMOVE(&session->unmapped, m, others);
	free(m);
}

/* 0, or why not: of that, -EIO is the daemon's fault. */
static int map_locked(struct kvfs_session *session,
		      const struct wire_segment *segment, int fd)
{
	struct kv_mapped_segment *m;
	void *base;

	kv_assert_locked(&session->lock);
	if (fd < 0 || segment->bytes == 0 || !cannot_shrink(fd, segment->bytes))
		return -EIO;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	base = mmap(NULL, segment->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		free(m);
		return -errno;
	}
	madvise(base, segment->bytes, MADV_DONTFORK);
	m->id = segment->id;
	m->generation = atomic_load(&session->live);
	m->base = base;
	m->bytes = segment->bytes;
	TAILQ_INSERT_HEAD(&session->mappings, m, others);
	kv_attach_locked(session, &m->attached, base, m->bytes, false);
	populate_locked(session, m);
	return 0;
}

void kv_mapped_segment_add_locked(struct kvfs_session *session,
				  const struct wire_segment *segment, int fd,
				  bool lost)
{
	struct kv_mapped_segment *unmapped =
		find_locked(session, &session->unmapped, segment->id);
	int r;

	kv_assert_locked(&session->lock);
	if (find_locked(session, &session->mappings, segment->id))
		return;
	r = lost ? -EMFILE : map_locked(session, segment, fd);
	if (r == 0)
		forget_unmapped_locked(session, unmapped);
	else if (r != -EIO)
		cannot_map_locked(session, segment->id, r);
}

static void gone_locked(struct kvfs_session *session,
			struct kv_mapped_segment *m)
{
	kv_assert_locked(&session->lock);
	if (kv_session_is_live(session, m->generation))
		tell_unmapped_locked(session, m->id);
	free(m);
}

static void detached(struct kvfs_session *session, struct kv_attached *attached)
{
	struct kv_mapped_segment *m =
		kv_container(attached, struct kv_mapped_segment, attached);

	munmap((void *)m->base, m->bytes);
	pthread_mutex_lock(&session->lock);
	gone_locked(session, m);
	pthread_mutex_unlock(&session->lock);
}

static void unmap_locked(struct kvfs_session *session,
			 struct kv_mapped_segment *m)
{
	kv_assert_locked(&session->lock);
	TAILQ_REMOVE(&session->mappings, m, others);
	if (kv_detach_locked(session, &m->attached, detached))
		return;
	munmap((void *)m->base, m->bytes);
	gone_locked(session, m);
}

void kv_mapped_segment_retire_locked(struct kvfs_session *session, uint32_t id)
{
	struct kv_mapped_segment *m =
		find_locked(session, &session->mappings, id);

	kv_assert_locked(&session->lock);
	if (!m) {
		/* The daemon has been told of the others already. */
		if (!find_locked(session, &session->unmapped, id))
			tell_unmapped_locked(session, id);
		return;
	}
	m->retired = true;
	if (m->refs == 0)
		unmap_locked(session, m);
}

void kv_mapped_segment_retire_all_locked(struct kvfs_session *session)
{
	struct kv_mapped_segment *m, *next;

	kv_assert_locked(&session->lock);
	while ((m = TAILQ_FIRST(&session->unmapped)))
		forget_unmapped_locked(session, m);
	for (m = TAILQ_FIRST(&session->mappings); m; m = next) {
		next = TAILQ_NEXT(m, others);
		m->retired = true;
		if (m->refs == 0)
			unmap_locked(session, m);
	}
}

int kv_mapped_segment_get_locked(struct kvfs_session *session, uint32_t id,
				 uint64_t offset, uint64_t length,
				 struct kv_mapped_segment **ret_mapped)
{
	struct kv_mapped_segment *m =
		find_locked(session, &session->mappings, id);

	kv_assert_locked(&session->lock);
	if (!m) {
		m = find_locked(session, &session->unmapped, id);
		return m ? m->error : -EIO;
	}
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
