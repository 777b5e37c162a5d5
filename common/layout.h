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
#define KV_PIECES_MAX 65536 /* of a layer */
#define KV_BLOB_MAX 64	    /* bytes of fingerprint and of salt */

enum kv_reuse { KV_REUSE_PREFIX, KV_REUSE_WINDOW, KV_REUSE_LAST };

struct kv_tensor {
	char *name;
	char dtype[12]; /* as safetensors spells it: "BF16" */
	uint32_t ndim;
	uint64_t shape[KV_DIM_MAX];
	uint64_t offset, bytes; /* in the payload */
	uint32_t layer;		/* where layers are whole tensors: which one */
};

struct kv_layout {
	struct kv_tensor *tensors; /* in file order, without gaps */
	uint32_t n_tensors;
	uint64_t payload; /* bytes of all tensors: > 0 */
	uint32_t tokens;  /* per block; 0: not said */
	enum kv_reuse reuse;
	uint32_t window; /* N of "window:N" */
	uint8_t fingerprint[KV_BLOB_MAX], salt[KV_BLOB_MAX];
	uint32_t fingerprint_len, salt_len;
	uint64_t seed;
	bool seed_drawn;     /* at random: the text gave none */
	uint32_t layers;     /* of the model */
	int layer_dim;	     /* dimension of every tensor that counts them, or
			       -1: tensor->layer */
	size_t layer_pieces; /* a layer is in so many pieces at most */
	bool layers_said;    /* by the text; else they were guessed */
	bool token_ids;	     /* blocks say what their tokens are */
	bool share;	     /* the space begins as one that other nodes see */
	char *json;	     /* canonical text */
	char *header; /* the tensors as a block's header has them (block.c) */
	size_t header_len;
};

/*
 * Parse @text (@len bytes, need not end in NUL).  A missing seed is drawn at
 * random, the other optional members take their defaults (tokens 0, reuse
 * "prefix", empty fingerprint and salt).  Of "layers" the canonical text has
 * what @text has: if that says nothing, they are the first dimension where all
 * tensors have the same one, else the tensors.  "token_ids" is in it if it is
 * true, which needs tokens, KV_TOKEN_IDS_MAX (token_ids.h) at most; "share" is in
 * it if it is true.
 * Errors: -EINVAL for anything that is not exactly a layout (unknown or
 * repeated member, bad dtype, zero or overflowing shape, repeated tensor name),
 * -EFBIG above KV_LAYOUT_TEXT_MAX, -ENOMEM.
 */
int kv_layout_parse(const char *text, size_t len,
		    struct kv_layout **ret_layout);
/*
 * Check a text that may still grow.  Returns
 *   1         a layout; *@ret_why is NULL
 *   0         the beginning of a JSON text; *@ret_why: where it ends
 *   -EINVAL   no layout, whatever follows; *@ret_why: the reason
 *   -EFBIG, -ENOMEM
 * The caller frees *@ret_why.
 */
int kv_layout_check(const char *text, size_t len, char **ret_why);
void kv_layout_free(struct kv_layout *layout);
void kv_layout_freep(struct kv_layout **layout);

/*
 * Whether writing @text over @layout changes nothing: each member that @text
 * gives but "share" has the value @layout has.  1 yes, 0 no, or an error of
 * _parse.
 */
int kv_layout_agrees(const struct kv_layout *layout, const char *text,
		     size_t len);

/*
 * Whether json_load failed for want of memory: then it often says nothing at
 * all.  (For a string, it does not tell that from a bad one.)
 */
struct json_error_t;
bool kv_json_no_memory(const struct json_error_t *error);

/* Bytes of one element; 0 for a dtype that kvfs does not know. */
uint32_t kv_dtype_bytes(const char *dtype);

#endif
