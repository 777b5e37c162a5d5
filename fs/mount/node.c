/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - node ids, and lives of directories.
 *
 * OWNS      the counts of removed directories: one record for each space in which a
 *           directory was removed while mounted.
 *
 * INVARIANTS
 *   (1) The top four bits are the type, 0 for fixed nodes, so that the root is FUSE's 1.
 *   (2) The other bits are a block's 60-bit id; an upload's serial; a user's id; a
 *       snapshot's 32-bit id, and above it in a link a position of 27 bits; or a
 *       space's id in bits 8 to 39, with a directory's byte below and its life above.
 *
 * LOCKING   lives->lock guards the list and the counts, and is a leaf lock.
 */
#include "common/bytes.h"
#include "fs/mount/node.h"

#define TYPE_SHIFT 60
#define VALUE_MASK ((UINT64_C(1) << TYPE_SHIFT) - 1)
#define LIFE_SHIFT 40
#define LIFE_MASK ((1u << 20) - 1)
#define POSITION_SHIFT 32

uint64_t kv_node_of(enum kv_node_type type, uint64_t value)
{
	return (uint64_t)type << TYPE_SHIFT | (value & VALUE_MASK);
}

uint64_t kv_node_in(enum kv_node_type type, uint32_t space)
{
	return kv_node_of(type, (uint64_t)space << 8);
}

uint64_t kv_node_of_dir(uint32_t space, uint8_t byte, uint32_t life)
{
	return kv_node_of(KV_NODE_DIR, (uint64_t)(life & LIFE_MASK)
						       << LIFE_SHIFT |
					       (uint64_t)space << 8 | byte);
}

uint64_t kv_node_of_delayed(uint64_t parent)
{
	bool of_dir = kv_node_decode(parent).type == KV_NODE_DIR;

	return kv_node_of(of_dir ? KV_NODE_DELAYED : KV_NODE_DELAYED_LAYOUT,
			  parent);
}

uint64_t kv_node_of_link(uint64_t snapshot, uint32_t position)
{
	return kv_node_of(KV_NODE_LINK,
			  (uint64_t)position << POSITION_SHIFT | snapshot);
}

struct kv_node kv_node_decode(uint64_t ino)
{
	enum kv_node_type type = (enum kv_node_type)(ino >> TYPE_SHIFT);
	uint64_t value = ino & VALUE_MASK;

	return (struct kv_node){
		.type = type,
		.value = type == KV_NODE_LINK ? (uint32_t)value : value,
		.position = (uint32_t)(value >> POSITION_SHIFT),
		.space = (uint32_t)(ino >> 8),
		.byte = (uint8_t)ino,
		.life = (uint32_t)(ino >> LIFE_SHIFT) & LIFE_MASK,
	};
}

int kv_dir_parse(const char *name, uint8_t *ret_byte)
{
	return strlen(name) == 2 ? kv_unhex(name, 1, ret_byte) : -EINVAL;
}

const char *const kv_fixed_names[KV_NODE_FIXED_END] = {
	[KV_NODE_KVFS] = ".kvfs",      [KV_NODE_CONTROL] = "control",
	[KV_NODE_CONFIG] = "config",   [KV_NODE_STATS] = "stats",
	[KV_NODE_METRICS] = "metrics", [KV_NODE_TENANTS] = "tenants"};

struct record {
	struct record *next; /* lock */
	uint32_t space;	     /* fixed after new */
	uint32_t ended[256]; /* lock */
};

struct kv_lives {
	pthread_mutex_t lock;
	struct record *records; /* lock */
};

int kv_lives_new(struct kv_lives **ret_lives)
{
	struct kv_lives *lives = calloc(1, sizeof(*lives));

	if (!lives)
		return -ENOMEM;
	pthread_mutex_init(&lives->lock, NULL);
	*ret_lives = lives;
	return 0;
}

void kv_lives_free(struct kv_lives *lives)
{
	struct record *next;

	if (!lives)
		return;
	for (struct record *r = lives->records; r; r = next) {
		next = r->next;
		free(r);
	}
	pthread_mutex_destroy(&lives->lock);
	free(lives);
}

/* Return the link that points to the space's record, or to NULL.  A linear scan: few
 * spaces ever lose a directory. */
static struct record **find_locked(struct kv_lives *lives, uint32_t space)
{
	struct record **link = &lives->records;

	kv_assert_locked(&lives->lock);
	while (*link && (*link)->space != space)
		link = &(*link)->next;
	return link;
}

uint32_t kv_lives_get(struct kv_lives *lives, uint32_t space, uint8_t byte)
{
	struct record *r;
	uint32_t life;

	pthread_mutex_lock(&lives->lock);
	r = *find_locked(lives, space);
	life = r ? r->ended[byte] : 0;
	pthread_mutex_unlock(&lives->lock);
	return life & LIFE_MASK;
}

/* Count the removal of a directory.  If memory is short the removal is not counted, which
 * does little harm: a directory made again then gets the same inode. */
void kv_lives_end(struct kv_lives *lives, uint32_t space, uint8_t byte)
{
	struct record **link;

	pthread_mutex_lock(&lives->lock);
	link = find_locked(lives, space);
	if (!*link) {
		*link = calloc(1, sizeof(**link));
		if (*link)
			(*link)->space = space;
	}
	if (*link)
		(*link)->ended[byte]++;
	pthread_mutex_unlock(&lives->lock);
}

void kv_lives_forget(struct kv_lives *lives, uint32_t space)
{
	struct record **link, *r;

	pthread_mutex_lock(&lives->lock);
	link = find_locked(lives, space);
	r = *link;
	if (r)
		*link = r->next;
	pthread_mutex_unlock(&lives->lock);
	free(r);
}
