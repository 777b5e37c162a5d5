/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - node ids (inode numbers).
 *
 * An id encodes type, space, directory and block.  So the daemon keeps no state per
 * inode, ignores the kernel's FORGET requests, and uses no id twice.
 */
#ifndef KV_FS_MOUNT_NODE_H
#define KV_FS_MOUNT_NODE_H

#include "common/kv.h"

enum kv_node_type {
	KV_NODE_FIXED, /* the root and .kvfs; value: KV_NODE_ROOT and following */
	KV_NODE_BLOCK, /* value: kv_block_info.id */
	KV_NODE_SPACE,
	KV_NODE_DIR, /* a two-digit directory; has byte and life */
	KV_NODE_LAYOUT,
	KV_NODE_UPLOAD,	   /* a file being written; value: its serial */
	KV_NODE_SNAPSHOTS, /* a space's .snapshots */
	KV_NODE_SNAPSHOT,  /* value: kv_snapshot_info.id */
	KV_NODE_LINK, /* link to a block; value: snapshot's id; has position */
	KV_NODE_DELAYED, /* .~tmp~ of a two-digit directory; has byte and life */
	KV_NODE_DELAYED_LAYOUT, /* .~tmp~ of a space */
	KV_NODE_TENANT,		/* value: a user's id */
};

enum {
	KV_NODE_ROOT = 1,
	KV_NODE_KVFS, /* .kvfs */
	KV_NODE_CONTROL,
	KV_NODE_CONFIG,
	KV_NODE_STATS,
	KV_NODE_METRICS,
	KV_NODE_TENANTS,
	KV_NODE_FIXED_END,
};

/* Names of the fixed nodes; NULL: none. */
extern const char *const kv_fixed_names[KV_NODE_FIXED_END];

struct kv_node {
	enum kv_node_type type;
	uint64_t value;
	uint32_t space;
	uint8_t byte;
	uint32_t life;
	uint32_t position;
};

/* Return the node of a block, upload, snapshot or user with the id @value. */
uint64_t kv_node_of(enum kv_node_type type, uint64_t value);
/* Return a node that each space has once: the space, its layout or its
 * .snapshots. */
uint64_t kv_node_in(enum kv_node_type type, uint32_t space);
uint64_t kv_node_of_dir(uint32_t space, uint8_t byte, uint32_t life);
/* Return the .~tmp~ of @parent, a KV_NODE_DIR or KV_NODE_SPACE. */
uint64_t kv_node_of_delayed(uint64_t parent);
uint64_t kv_node_of_link(uint64_t snapshot, uint32_t position);
struct kv_node kv_node_decode(uint64_t ino);

/* Parse the name of a two-digit directory, such as "ab".  Returns 0 or -EINVAL. */
int kv_dir_parse(const char *name, uint8_t *ret_byte);

/*
 * Counts of how often each two-digit directory was removed: its "life".  A directory that
 * is made again gets another inode, because a process whose working directory is the
 * removed one would otherwise corrupt the kernel's view of the new one.
 */
struct kv_lives;
int kv_lives_new(struct kv_lives **ret_lives); /* -ENOMEM */
void kv_lives_free(struct kv_lives *lives);    /* takes NULL */
uint32_t kv_lives_get(struct kv_lives *lives, uint32_t space, uint8_t byte);
void kv_lives_end(struct kv_lives *lives, uint32_t space, uint8_t byte);
void kv_lives_forget(struct kv_lives *lives, uint32_t space);

#endif
