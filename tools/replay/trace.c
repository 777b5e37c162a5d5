/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - read a trace from a file.
 *
 * OWNS      the trace; while reading, the tree from id to number.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <jansson.h>
#include <search.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/array.h"
#include "tools/replay/replay.h"

struct known {
	int64_t id;
	uint32_t number;
};

struct reader {
	const char *path;
	unsigned long line;
	gzFile file;
	char *text;
	size_t room;
	void *ids; /* tree of struct known */
	struct kv_trace *trace;
	size_t room_blocks, room_requests;
	char *why;
};

static int refuse(struct reader *reader, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int refuse(struct reader *reader, const char *format, ...)
{
	char reason[256];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	if (asprintf(&reader->why, "%s:%lu: %s", reader->path, reader->line,
		     reason) < 0)
		reader->why = NULL;
	return -EINVAL;
}

static int by_id(const void *a, const void *b)
{
	const struct known *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int number_of(struct reader *reader, int64_t id, uint32_t *ret_number)
{
	struct known *known = malloc(sizeof(*known)), **at = NULL;

	if (known) {
		*known = (struct known){id, reader->trace->unique};
		at = tsearch(known, &reader->ids, by_id);
	}
	if (at && *at == known)
		reader->trace->unique++;
	else
		free(known);
	if (!at)
		return -ENOMEM;
	*ret_number = (*at)->number;
	return 0;
}

/* Set @ret_value to the integer @name of @line, which is at least @least; to
 * @otherwise if @name is absent and @otherwise is not negative. */
static int get_number(struct reader *reader, const json_t *line,
		      const char *name, int64_t least, int64_t otherwise,
		      int64_t *ret_value)
{
	const json_t *value = json_object_get(line, name);

	if (!value && otherwise >= 0) {
		*ret_value = otherwise;
		return 0;
	}
	if (!value)
		return refuse(reader, "%s is missing", name);
	if (!json_is_integer(value) || json_integer_value(value) < least ||
	    json_integer_value(value) > UINT32_MAX)
		return refuse(reader, "%s is not a number of at least %lld",
			      name, (long long)least);
	*ret_value = json_integer_value(value);
	return 0;
}

static int take_ids(struct reader *reader, const json_t *ids, size_t full)
{
	struct kv_trace *trace = reader->trace;
	size_t at = trace->start[trace->n];
	int r = kv_array_reserve(&trace->blocks, &reader->room_blocks,
				 at + full);

	for (size_t i = 0; r == 0 && i < full; i++) {
		const json_t *id = json_array_get(ids, i);

		if (!json_is_integer(id))
			return refuse(reader, "hash_ids[%zu] is not a number",
				      i);
		r = number_of(reader, json_integer_value(id),
			      &trace->blocks[at + i]);
	}
	if (r == 0)
		r = kv_array_reserve(&trace->start, &reader->room_requests,
				     trace->n + 2);
	if (r < 0)
		return r;
	trace->start[++trace->n] = at + full;
	return 0;
}

static int take_line(struct reader *reader, const json_t *line,
		     uint32_t block_size)
{
	const json_t *ids = json_object_get(line, "hash_ids");
	int64_t length = 0, tokens = 1;
	size_t full;
	int r;

	if (!json_is_object(line))
		return refuse(reader, "not a JSON object");
	r = get_number(reader, line, "input_length", 0, -1, &length);
	if (r == 0)
		r = get_number(reader, line, "block_size", 1, block_size,
			       &tokens);
	if (r < 0)
		return r;
	if (!json_is_array(ids))
		return refuse(reader, "hash_ids is missing, or not an array");
	full = (size_t)(length / tokens);
	if (json_array_size(ids) < full)
		return refuse(reader, "%zu hash_ids for %zu full blocks",
			      json_array_size(ids), full);
	reader->trace->block_size = (uint32_t)tokens;
	return take_ids(reader, ids, full);
}

/* Read a line of any length.  1; 0: end of the file; -ENOMEM */
static int read_line(struct reader *reader, size_t *ret_n)
{
	size_t n = 0;

	reader->line++;
	for (;;) {
		int r = kv_array_reserve(&reader->text, &reader->room,
					 n + 4096);

		if (r < 0)
			return r;
		if (!gzgets(reader->file, reader->text + n,
			    (int)(reader->room - n)))
			break;
		n += strlen(reader->text + n);
		if (n && reader->text[n - 1] == '\n')
			break;
	}
	*ret_n = n;
	return n > 0;
}

static int read_lines(struct reader *reader, uint32_t block_size)
{
	json_error_t error;
	json_t *line;
	size_t n;
	int r, z;

	while ((r = read_line(reader, &n)) > 0) {
		if (strspn(reader->text, " \t\r\n") == n)
			continue;
		line = json_loadb(reader->text, n, 0, &error);
		r = line ? take_line(reader, line, block_size)
			 : refuse(reader, "%s", error.text);
		json_decref(line);
		if (r < 0)
			return r;
	}
	gzerror(reader->file, &z);
	if (r == 0 && z != Z_OK && z != Z_STREAM_END)
		r = refuse(reader, "the file is damaged or cut short");
	if (r == 0 && reader->trace->n == 0)
		r = refuse(reader, "no requests");
	return r;
}

int kv_trace_read(const char *path, uint32_t block_size,
		  struct kv_trace **ret_trace, char **ret_why)
{
	struct reader reader = {.path = path};
	int r;

	*ret_why = NULL;
	reader.trace = calloc(1, sizeof(*reader.trace));
	if (!reader.trace)
		return -ENOMEM;
	r = kv_array_reserve(&reader.trace->start, &reader.room_requests, 1);
	if (r == 0) {
		reader.trace->start[0] = 0;
		reader.file = gzopen(path, "rb");
		r = reader.file ? read_lines(&reader, block_size)
				: refuse(&reader, "%s", strerror(errno));
	}
	if (reader.file)
		gzclose(reader.file);
	free(reader.text);
	tdestroy(reader.ids, free);
	if (r < 0) {
		kv_trace_free(reader.trace);
		*ret_why = reader.why;
		return r;
	}
	*ret_trace = reader.trace;
	return 0;
}

void kv_trace_free(struct kv_trace *trace)
{
	if (!trace)
		return;
	free(trace->blocks);
	free(trace->start);
	free(trace);
}
