/* SPDX-License-Identifier: Apache-2.0 */
/*
 * landing.c - the memory through which bytes go to a helper and come from it.
 *
 * OWNS      the mapping.
 *
 * INVARIANTS
 *   (1) Places that are taken do not overlap, and stand in the list in order.
 *
 * LOCKING   the caller's.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "cache/remote/landing.h"

#define UNIT 128u

void kv_landing_init(struct kv_landing *landing)
{
	TAILQ_INIT(&landing->taken);
}

int kv_landing_make(struct kv_landing *landing, uint64_t bytes)
{
	_cleanup_(kv_closep) int fd =
		memfd_create("kvfs-landing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *memory;

	/* Or who else has it could make it so short that reading kills us. */
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) <
		    0)
		return -errno;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	landing->memory = memory;
	landing->bytes = bytes;
	return kv_steal_fd(&fd);
}

void kv_landing_drop(struct kv_landing *landing)
{
	if (landing->memory)
		munmap(landing->memory, landing->bytes);
	landing->memory = NULL;
}

int kv_place_take(struct kv_landing *landing, uint64_t bytes,
		  struct kv_place *place)
{
	struct kv_place *next;
	uint64_t at = 0;

	bytes = kv_round_up(bytes, UNIT);
	TAILQ_FOREACH(next, &landing->taken, link) {
		if (next->at - at >= bytes)
			break;
		at = next->at + next->bytes;
	}
	if (!next && landing->bytes - at < bytes)
		return -EAGAIN;
	place->at = at;
	place->bytes = bytes;
	if (next)
		TAILQ_INSERT_BEFORE(next, place, link);
	else
		TAILQ_INSERT_TAIL(&landing->taken, place, link);
	return 0;
}

void kv_place_free(struct kv_landing *landing, struct kv_place *place)
{
	TAILQ_REMOVE(&landing->taken, place, link);
}
