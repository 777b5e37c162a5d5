/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - the layout of a space, from its JSON and back.
 *
 * OWNS      a kv_layout: its tensors, their names and its two texts.
 *
 * INVARIANTS
 *   (1) A layout that is handed out is complete and never changes.
 *   (2) Its canonical text parses to an equal layout.
 *   (3) Offsets and sizes of its tensors do not overflow, and tile the payload.
 *
 * LOCKING   none: see (1).
 */
#include "common/layout.h"
#include "common/bytes.h"
#include "common/block.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <jansson.h>

#define TENSORS_MAX 4096
#define PAYLOAD_MAX ((uint64_t)1 << 40)
#define SEED_DIGITS 16
#define REUSE_TEXT_MAX 24 /* "window:4294967295" */

uint32_t kv_dtype_bytes(const char *dtype)
{
	static const struct {
		char name[12];
		uint32_t bytes;
	} known[] = {
		{"BOOL", 1},	{"U8", 1},	{"I8", 1},  {"F8_E5M2", 1},
		{"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
		{"F16", 2},	{"BF16", 2},	{"I32", 4}, {"U32", 4},
		{"F32", 4},	{"F64", 8},	{"I64", 8}, {"U64", 8},
		{"C64", 8},
	};

	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++)
		if (strcmp(known[i].name, dtype) == 0)
			return known[i].bytes;
	return 0;
}

void kv_layout_free(struct kv_layout *layout)
{
	if (!layout)
		return;
	for (uint32_t i = 0; layout->tensors && i < layout->n_tensors; i++)
		free(layout->tensors[i].name);
	free(layout->tensors);
	free(layout->json);
	free(layout->header);
	free(layout);
}

void kv_layout_freep(struct kv_layout **layout)
{
	kv_layout_free(*layout);
}

static int parse_shape(const json_t *json, struct kv_tensor *tensor)
{
	size_t n = json_array_size(json);

	if (!json_is_array(json) || n > KV_DIM_MAX)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		const json_t *dim = json_array_get(json, i);
		json_int_t value = json_integer_value(dim);

		if (!json_is_integer(dim) || value < 1)
			return -EINVAL;
		tensor->shape[i] = (uint64_t)value;
		if (__builtin_mul_overflow(tensor->bytes, (uint64_t)value,
					   &tensor->bytes))
			return -EINVAL;
	}
	tensor->ndim = (uint32_t)n;
	return 0;
}

static int parse_tensor(const json_t *json, struct kv_tensor *tensor)
{
	const json_t *name = json_object_get(json, "name");
	const json_t *dtype = json_object_get(json, "dtype");
	size_t len = json_string_length(name);

	if (json_object_size(json) != 3 || !json_is_string(name) ||
	    !json_is_string(dtype))
		return -EINVAL;
	if (len < 1 || len > KV_TENSOR_NAME_MAX ||
	    strcmp(json_string_value(name), "__metadata__") == 0)
		return -EINVAL;
	tensor->bytes = kv_dtype_bytes(json_string_value(dtype));
	if (tensor->bytes == 0)
		return -EINVAL;
	strcpy(tensor->dtype, json_string_value(dtype));
	tensor->name = strdup(json_string_value(name));
	if (!tensor->name)
		return -ENOMEM;
	return parse_shape(json_object_get(json, "shape"), tensor);
}

static int parse_tensors(const json_t *json, struct kv_layout *layout,
			 char **ret_why)
{
	size_t n = json_array_size(json);
	int r;

	if (!json_is_array(json) || n < 1 || n > TENSORS_MAX)
		return kv_why(ret_why, -EINVAL,
			      "\"tensors\" must be an array of 1 to %d objects",
			      TENSORS_MAX);
	layout->tensors = calloc(n, sizeof(*layout->tensors));
	if (!layout->tensors)
		return -ENOMEM;
	layout->n_tensors = (uint32_t)n;

	for (size_t i = 0; i < n; i++) {
		struct kv_tensor *tensor = &layout->tensors[i];

		r = parse_tensor(json_array_get(json, i), tensor);
		if (r == -EINVAL)
			return kv_why(
				ret_why, r,
				"tensor %zu needs exactly a name, a known "
				"dtype "
				"and a shape of at most %d positive numbers",
				i, KV_DIM_MAX);
		if (r < 0)
			return r;
		tensor->offset = layout->payload;
		if (tensor->bytes > PAYLOAD_MAX - layout->payload)
			return kv_why(
				ret_why, -EINVAL,
				"the tensors are larger than 1T together");
		layout->payload += tensor->bytes;
	}
	return 0;
}

static int parse_reuse(const json_t *json, struct kv_layout *layout)
{
	const char *text = json_string_value(json);
	unsigned long long value;
	char *end;

	if (!text)
		return -EINVAL;
	if (strcmp(text, "prefix") == 0) {
		layout->reuse = KV_REUSE_PREFIX;
		return 0;
	}
	if (strcmp(text, "last") == 0) {
		layout->reuse = KV_REUSE_LAST;
		return 0;
	}
	if (strncmp(text, "window:", 7) != 0)
		return -EINVAL;
	text += 7;
	if (text[0] < '1' || text[0] > '9' || strlen(text) > 10)
		return -EINVAL;
	value = strtoull(text, &end, 10);
	if (*end != '\0' || value > UINT32_MAX)
		return -EINVAL;
	layout->reuse = KV_REUSE_WINDOW;
	layout->window = (uint32_t)value;
	return 0;
}

/* Parse the hex string @json into @blob, which has room for KV_BLOB_MAX. */
static int parse_blob(const json_t *json, uint8_t *blob, uint32_t *ret_len)
{
	const char *text = json_string_value(json);
	size_t digits = json_string_length(json);
	char lower[2 * KV_BLOB_MAX];

	if (!text || digits % 2 || digits > sizeof(lower))
		return -EINVAL;
	for (size_t i = 0; i < digits; i++)
		lower[i] = (char)tolower((unsigned char)text[i]);
	*ret_len = (uint32_t)(digits / 2);
	return kv_unhex(lower, digits / 2, blob);
}

static int parse_seed(const json_t *json, struct kv_layout *layout)
{
	uint8_t bytes[KV_BLOB_MAX];
	uint32_t len;
	int r;

	if (json_string_length(json) != SEED_DIGITS)
		return -EINVAL;
	r = parse_blob(json, bytes, &len);
	if (r < 0)
		return r;
	memcpy(&layout->seed, bytes, sizeof(layout->seed));
	layout->seed = be64toh(layout->seed);
	return 0;
}

/* ---- layers ---- */

/* Split every tensor into layers along its dimension @dim. */
static int layers_by_dimension(struct kv_layout *layout, json_int_t dim)
{
	size_t pieces = 0;

	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		const struct kv_tensor *t = &layout->tensors[i];
		size_t before = 1;

		if (dim < 0 || dim >= t->ndim || t->shape[dim] > UINT32_MAX ||
		    t->shape[dim] != layout->tensors[0].shape[dim])
			return -EINVAL;
		for (json_int_t d = 0; d < dim; d++)
			if (__builtin_mul_overflow(before, t->shape[d],
						   &before))
				return -EINVAL;
		if (before > KV_PIECES_MAX - pieces)
			return -EINVAL;
		pieces += before;
	}
	layout->layers = (uint32_t)layout->tensors[0].shape[dim];
	layout->layer_dim = (int)dim;
	layout->layer_pieces = pieces;
	return 0;
}

static void layers_by_tensor(struct kv_layout *layout)
{
	for (uint32_t i = 0; i < layout->n_tensors; i++)
		layout->tensors[i].layer = i;
	layout->layers = layout->n_tensors;
	layout->layer_dim = -1;
	layout->layer_pieces = layout->n_tensors;
}

/* Set the layers to @json, a list of lists of tensors' names: each name once. */
static int layers_by_list(struct kv_layout *layout, const json_t *json)
{
	_cleanup_(json_decrefp) json_t *all = json_object();
	size_t n = json_array_size(json);

	for (uint32_t i = 0; i < layout->n_tensors; i++)
		if (json_object_set_new(all, layout->tensors[i].name,
					json_integer(i)) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const json_t *names = json_array_get(json, i);

		if (json_array_size(names) == 0)
			return -EINVAL;
		for (size_t k = 0; k < json_array_size(names); k++) {
			const json_t *value = json_array_get(names, k), *index;
			const char *name = json_string_value(value);

			index = name ? json_object_get(all, name) : NULL;
			if (!index)
				return -EINVAL;
			layout->tensors[json_integer_value(index)].layer =
				(uint32_t)i;
			json_object_del(all, name);
		}
	}
	if (json_object_size(all) > 0)
		return -EINVAL;
	layout->layers = (uint32_t)n;
	layout->layer_dim = -1;
	layout->layer_pieces = layout->n_tensors;
	return 0;
}

static json_t *layers_json(const struct kv_layout *layout)
{
	_cleanup_(json_decrefp) json_t *json = json_array();

	if (layout->layer_dim >= 0)
		return json_integer(layout->layer_dim);
	for (uint32_t i = 0; i < layout->layers; i++)
		if (json_array_append_new(json, json_array()) < 0)
			return NULL;
	for (uint32_t i = 0; i < layout->n_tensors; i++)
		if (json_array_append_new(
			    json_array_get(json, layout->tensors[i].layer),
			    json_string(layout->tensors[i].name)) < 0)
			return NULL;
	return kv_steal(json);
}

static int parse_member(const char *name, const json_t *value,
			struct kv_layout *layout)
{
	if (strcmp(name, "tensors") == 0)
		return 0; /* parse_object has parsed this member already */
	if (strcmp(name, "tokens") == 0) {
		layout->tokens = (uint32_t)json_integer_value(value);
		return json_is_integer(value) && json_integer_value(value) ==
							 layout->tokens
			       ? 0
			       : -EINVAL;
	}
	if (strcmp(name, "reuse") == 0)
		return parse_reuse(value, layout);
	if (strcmp(name, "fingerprint") == 0)
		return parse_blob(value, layout->fingerprint,
				  &layout->fingerprint_len);
	if (strcmp(name, "seed") == 0)
		return parse_seed(value, layout);
	if (strcmp(name, "salt") == 0)
		return parse_blob(value, layout->salt, &layout->salt_len);
	if (strcmp(name, "layers") == 0) {
		layout->layers_given = true;
		if (json_is_integer(value))
			return layers_by_dimension(layout,
						   json_integer_value(value));
		if (json_is_array(value))
			return layers_by_list(layout, value);
		if (!json_is_string(value) ||
		    strcmp(json_string_value(value), "tensors") != 0)
			return -EINVAL;
		layers_by_tensor(layout);
		return 0;
	}
	if (strcmp(name, "token_ids") == 0) {
		layout->token_ids = json_is_true(value);
		return json_is_boolean(value) ? 0 : -EINVAL;
	}
	if (strcmp(name, "keys") == 0) {
		layout->engine_keys = true;
		return json_is_string(value) && strcmp(json_string_value(value),
						       "engine") == 0
			       ? 0
			       : -EINVAL;
	}
	if (strcmp(name, "share") == 0) {
		layout->share = json_is_true(value);
		return json_is_boolean(value) ? 0 : -EINVAL;
	}
	return -EINVAL;
}

static int parse_object(json_t *json, struct kv_layout *layout, char **ret_why)
{
	const char *name;
	json_t *value;
	ssize_t n;
	int r;

	r = parse_tensors(json_object_get(json, "tensors"), layout, ret_why);
	if (r < 0)
		return r;
	if (layers_by_dimension(layout, 0) < 0)
		layers_by_tensor(layout);
	json_object_foreach(json, name, value) {
		r = parse_member(name, value, layout);
		if (r == -EINVAL)
			return kv_why(ret_why, r,
				      "\"%s\" is no member of a layout, or "
				      "its value is invalid",
				      name);
		if (r < 0)
			return r;
	}
	if (layout->token_ids &&
	    (layout->tokens == 0 || layout->tokens > KV_TOKEN_IDS_MAX))
		return kv_why(ret_why, -EINVAL,
			      "\"token_ids\" needs \"tokens\" from 1 to %u",
			      KV_TOKEN_IDS_MAX);
	layout->seed_drawn = !json_object_get(json, "seed");
	do
		n = layout->seed_drawn
			    ? getrandom(&layout->seed, sizeof(layout->seed), 0)
			    : (ssize_t)sizeof(layout->seed);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n == sizeof(layout->seed) ? 0 : -EIO;
}

static json_t *shape_json(const struct kv_tensor *tensor)
{
	_cleanup_(json_decrefp) json_t *json = json_array();

	for (uint32_t i = 0; i < tensor->ndim; i++)
		if (json_array_append_new(
			    json, json_integer((json_int_t)tensor->shape[i])) <
		    0)
			return NULL;
	return kv_steal(json);
}

/* Make the constant part of a block's safetensors header, which follows
 * `{"__metadata__":{...},`. */
static int make_header(struct kv_layout *layout)
{
	_cleanup_(json_decrefp) json_t *all = json_object();

	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		const struct kv_tensor *t = &layout->tensors[i];
		json_t *tensor;

		if (json_object_get(all, t->name))
			return -EINVAL;
		tensor = json_pack(
			"{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape",
			shape_json(t), "data_offsets", (json_int_t)t->offset,
			(json_int_t)t->offset + (json_int_t)t->bytes);
		if (json_object_set_new(all, t->name, tensor) < 0)
			return -ENOMEM;
	}
	layout->header = json_dumps(all, JSON_COMPACT);
	if (!layout->header)
		return -ENOMEM;
	layout->header_len = strlen(layout->header) - 1;
	memmove(layout->header, layout->header + 1, layout->header_len + 1);
	return 0;
}

static json_t *blob_json(const uint8_t *blob, uint32_t len)
{
	char text[2 * KV_BLOB_MAX + 1];

	kv_hex(blob, len, text);
	return json_string(text);
}

static json_t *tensors_json(const struct kv_layout *layout)
{
	_cleanup_(json_decrefp) json_t *json = json_array();

	for (uint32_t i = 0; i < layout->n_tensors; i++) {
		const struct kv_tensor *t = &layout->tensors[i];
		json_t *tensor =
			json_pack("{s:s, s:s, s:o}", "name", t->name, "dtype",
				  t->dtype, "shape", shape_json(t));

		if (json_array_append_new(json, tensor) < 0)
			return NULL;
	}
	return kv_steal(json);
}

/* Make the canonical text; jansson keeps the order of members. */
static int make_text(struct kv_layout *layout)
{
	_cleanup_(json_decrefp) json_t *json = NULL;
	_cleanup_(kv_freep) char *text = NULL;
	char seed[SEED_DIGITS + 1], window[REUSE_TEXT_MAX], *line;

	snprintf(seed, sizeof(seed), "%016" PRIx64, layout->seed);
	snprintf(window, sizeof(window), "window:%" PRIu32, layout->window);
	json = json_pack(
		"{s:o, s:I, s:s, s:o, s:s, s:o}", "tensors",
		tensors_json(layout), "tokens", (json_int_t)layout->tokens,
		"reuse",
		layout->reuse == KV_REUSE_PREFIX ? "prefix"
		: layout->reuse == KV_REUSE_LAST ? "last"
						 : window,
		"fingerprint",
		blob_json(layout->fingerprint, layout->fingerprint_len), "seed",
		seed, "salt", blob_json(layout->salt, layout->salt_len));
	if (!json ||
	    (layout->layers_given &&
	     json_object_set_new(json, "layers", layers_json(layout)) < 0) ||
	    (layout->token_ids &&
	     json_object_set_new(json, "token_ids", json_true()) < 0) ||
	    (layout->engine_keys &&
	     json_object_set_new(json, "keys", json_string("engine")) < 0) ||
	    (layout->share &&
	     json_object_set_new(json, "share", json_true()) < 0))
		return -ENOMEM;
	text = json_dumps(json, 0);
	if (!text)
		return -ENOMEM;
	if (strlen(text) + 1 > KV_LAYOUT_TEXT_MAX)
		return -EFBIG;
	if (asprintf(&line, "%s\n", text) < 0)
		return -ENOMEM;
	free(layout->json);
	layout->json = line;
	return 0;
}

int kv_layout_set_seed(struct kv_layout *layout, uint64_t seed)
{
	layout->seed = seed;
	layout->seed_drawn = false;
	return make_text(layout);
}

bool kv_json_no_memory(const struct json_error_t *error)
{
	return error->text[0] == '\0' ||
	       json_error_code(error) == json_error_out_of_memory;
}

/* Parse @text.  Return 1 if the text may be the beginning of a layout. */
static int parse(const char *text, size_t len, struct kv_layout **ret_layout,
		 char **ret_why)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(json_decrefp) json_t *json = NULL;
	json_error_t error;
	int r;

	if (len > KV_LAYOUT_TEXT_MAX)
		return kv_why(ret_why, -EFBIG, "it is longer than %d bytes",
			      KV_LAYOUT_TEXT_MAX);
	json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
	if (!json && kv_json_no_memory(&error))
		return -ENOMEM;
	if (!json)
		return kv_why(ret_why,
			      json_error_code(&error) ==
					      json_error_premature_end_of_input
				      ? 1
				      : -EINVAL,
			      "line %d, column %d: %s", error.line,
			      error.column, error.text);
	layout = calloc(1, sizeof(*layout));
	if (!layout)
		return -ENOMEM;
	r = parse_object(json, layout, ret_why);
	if (r < 0)
		return r;
	r = make_header(layout);
	if (r == -EINVAL)
		return kv_why(ret_why, r, "two tensors have the same name");
	if (r < 0)
		return r;
	r = make_text(layout);
	if (r < 0)
		return r;
	*ret_layout = kv_steal(layout);
	return 0;
}

int kv_layout_parse(const char *text, size_t len, struct kv_layout **ret_layout)
{
	_cleanup_(kv_freep) char *why = NULL;
	int r = parse(text, len, ret_layout, &why);

	return r == 1 ? -EINVAL : r;
}

int kv_layout_check(const char *text, size_t len, struct kv_layout **ret_layout,
		    char **ret_why)
{
	int r;

	*ret_why = NULL;
	r = parse(text, len, ret_layout, ret_why);
	return r < 0 ? r : r == 0;
}

int kv_layout_agrees(const struct kv_layout *layout, const char *text,
		     size_t len)
{
	_cleanup_(kv_layout_freep) struct kv_layout *other = NULL;
	_cleanup_(json_decrefp) json_t *given = NULL, *ours = NULL,
				       *theirs = NULL;
	const char *name;
	json_t *value;
	int r = kv_layout_parse(text, len, &other);

	if (r < 0)
		return r;
	/* Compare the canonical texts, with "layers" filled in. */
	given = json_loadb(text, len, 0, NULL);
	ours = json_loads(layout->json, 0, NULL);
	theirs = json_loads(other->json, 0, NULL);
	if (!given || !ours || !theirs ||
	    json_object_set_new(ours, "layers", layers_json(layout)) < 0 ||
	    json_object_set_new(theirs, "layers", layers_json(other)) < 0)
		return -ENOMEM;
	json_object_foreach(given, name, value) {
		const json_t *a = json_object_get(ours, name);
		const json_t *b = json_object_get(theirs, name);

		/* a == b: both texts lack the member "token_ids" */
		if (strcmp(name, "share") != 0 && strcmp(name, "keys") != 0 &&
		    a != b && !json_equal(a, b))
			return 0;
	}
	return 1;
}
