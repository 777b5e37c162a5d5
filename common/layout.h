/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - the layout of a space: which tensors its blocks hold.
 *
 * Shared by the daemon and libkvfs.  The text form is the JSON of a space's
 * `.layout` file; the text in @json is canonical: members in a fixed order,
 * every optional member filled in, one newline at the end.
 */
#ifndef KV_COMMON_LAYOUT_H
#define KV_COMMON_LAYOUT_H

#include "common/kv.h"

#define KV_LAYOUT_TEXT_MAX 60000 /* bytes of JSON; fits one control message */
#define KV_TENSOR_NAME_MAX 255
#define KV_DIM_MAX 8
#define KV_PIECES_MAX 65536 /* most pieces of memory in one layer of a block */
#define KV_BLOB_MAX 64	    /* most bytes of a fingerprint or a salt */

enum kv_reuse { KV_REUSE_PREFIX, KV_REUSE_WINDOW, KV_REUSE_LAST };

struct kv_tensor {
	char *name;
	char dtype[12]; /* data type, in safetensors' spelling: "BF16" */
	uint32_t ndim;
	uint64_t shape[KV_DIM_MAX];
	uint64_t offset, bytes; /* place of the tensor in a block's payload */
	uint32_t layer; /* number of its layer, if it belongs to a single one */
};

struct kv_layout {
	struct kv_tensor *tensors; /* in the order of a block, without gaps */
	uint32_t n_tensors;
	uint64_t payload; /* bytes of all tensors of a block: > 0 */
	uint32_t tokens;  /* tokens in each block; 0: unknown */
	enum kv_reuse reuse;
	uint32_t window; /* N of the reuse rule "window:N" */
	uint8_t fingerprint[KV_BLOB_MAX], salt[KV_BLOB_MAX];
	uint32_t fingerprint_len, salt_len;
	uint64_t seed;
	bool seed_drawn; /* the text gives no seed: it is a random one */
	uint32_t layers; /* number of the model's layers */
	int layer_dim; /* tensor dimension of layers; -1: layers are tensors */
	size_t layer_pieces; /* most pieces of memory in one layer */
	bool layers_given;   /* the text has the member "layers" */
	bool token_ids;	     /* blocks carry the ids of their tokens */
	bool engine_keys; /* "keys": "engine": keys do not depend on the seed */
	bool share;   /* the space is shared with other nodes from the start */
	char *json;   /* canonical text */
	char *header; /* the tensors' part of a block's header (block.c) */
	size_t header_len;
};

/*
 * Parse @text (@len bytes, need not end in NUL).  A missing seed is drawn at
 * random, the other optional members take their defaults (tokens 0, reuse
 * "prefix", empty fingerprint and salt).  The canonical text has "layers" only if
 * @text has it; without it the layers are the first dimension, if all tensors
 * have the same one, else the tensors.  "token_ids", "share" and "keys" are in the
 * canonical text if they are true, or "engine"; "token_ids" needs "tokens", at most
 * KV_TOKEN_IDS_MAX.
 * Errors: -EINVAL for anything that is not exactly a layout (unknown or
 * repeated member, bad dtype, zero or overflowing shape, repeated tensor name),
 * -EFBIG above KV_LAYOUT_TEXT_MAX, -ENOMEM.
 */
int kv_layout_parse(const char *text, size_t len,
		    struct kv_layout **ret_layout);
/*
 * Check a text that may still grow.  Returns
 *   1         a layout, *@ret_layout; *@ret_why is NULL
 *   0         the beginning of a JSON text; *@ret_why: where it ends
 *   -EINVAL   no layout, whatever follows; *@ret_why: the reason
 *   -EFBIG, -ENOMEM
 * The caller frees *@ret_why.
 */
int kv_layout_check(const char *text, size_t len, struct kv_layout **ret_layout,
		    char **ret_why);
/* Change the seed of an unshared layout.  -ENOMEM: free the layout. */
int kv_layout_set_seed(struct kv_layout *layout, uint64_t seed);
void kv_layout_free(struct kv_layout *layout);
void kv_layout_freep(struct kv_layout **layout);

/*
 * Return whether each member of @text except "share" and "keys" has the same value in
 * @layout.  1: yes; 0: no; or an error of kv_layout_parse.
 */
int kv_layout_agrees(const struct kv_layout *layout, const char *text,
		     size_t len);

/*
 * Return whether json_load failed because of too little memory, which often
 * leaves @error empty.  (It reports a string without memory as bad.)
 */
struct json_error_t;
bool kv_json_no_memory(const struct json_error_t *error);

/* Return the bytes of one element; 0: an unknown dtype. */
uint32_t kv_dtype_bytes(const char *dtype);

#endif
