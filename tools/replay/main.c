/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-replay: the hit rate that a trace gets from a policy and a
 * capacity, simulated.
 *
 * The policies are the daemon's own code, linked from cache/evict/.
 *
 * OWNS      the trace; while reading the trace, the tree from id to number; the
 *           set of resident blocks; the policy's nodes for all blocks of the
 *           trace; a ghost list of four times the capacity, as in the daemon;
 *           the policy names of the command line.
 *
 * LOCKING   none: one thread; getopt has static state.
 */
#include <getopt.h>
#include <jansson.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <zlib.h>

#include "cache/evict/policy.h"
#include "common/array.h"

/* ---- reading a trace ---- */

/*
 * A trace: the blocks that each request asks for.  The file has one JSON object
 * a line: input_length (tokens), hash_ids, and optionally timestamp (ms) and
 * block_size (tokens).  An id stands for the whole prefix up to and including
 * its block; partial blocks do not count.
 */
struct trace {
	/* block numbers, dense from 0, request after request */
	uint32_t *blocks;
	/* index in @blocks of each request's first block; [n]: the end */
	size_t *start;
	size_t n;
	uint32_t unique;
	uint32_t block_size; /* tokens per block, from the last line */
};

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
	void *ids; /* binary tree of struct known */
	struct trace *trace;
	size_t room_blocks, room_requests;
};

__attribute__((format(printf, 2, 3))) static int
refuse_line(const struct reader *reader, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "kvfs-replay: %s:%lu: ", reader->path, reader->line);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
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
		return refuse_line(reader, "%s is missing", name);
	if (!json_is_integer(value) || json_integer_value(value) < least ||
	    json_integer_value(value) > UINT32_MAX)
		return refuse_line(reader,
				   "%s is not a number of at least %lld", name,
				   (long long)least);
	*ret_value = json_integer_value(value);
	return 0;
}

static int take_ids(struct reader *reader, const json_t *ids, size_t full)
{
	struct trace *trace = reader->trace;
	size_t at = trace->start[trace->n];
	int r = kv_array_reserve(&trace->blocks, &reader->room_blocks,
				 at + full);

	for (size_t i = 0; r == 0 && i < full; i++) {
		const json_t *id = json_array_get(ids, i);

		if (!json_is_integer(id))
			return refuse_line(reader,
					   "hash_ids[%zu] is not a number", i);
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
		return refuse_line(reader, "not a JSON object");
	r = get_number(reader, line, "input_length", 0, -1, &length);
	if (r == 0)
		r = get_number(reader, line, "block_size", 1, block_size,
			       &tokens);
	if (r < 0)
		return r;
	if (!json_is_array(ids))
		return refuse_line(reader,
				   "hash_ids is missing, or not an array");
	full = (size_t)(length / tokens);
	if (json_array_size(ids) < full)
		return refuse_line(reader, "%zu hash_ids for %zu full blocks",
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
			 : refuse_line(reader, "%s", error.text);
		json_decref(line);
		if (r < 0)
			return r;
	}
	gzerror(reader->file, &z);
	if (r == 0 && z != Z_OK && z != Z_STREAM_END)
		r = refuse_line(reader, "the file is damaged or cut short");
	if (r == 0 && reader->trace->n == 0)
		r = refuse_line(reader, "no requests");
	return r;
}

/* Read @path, gzipped or not, into the zeroed @trace.  @block_size applies to
 * lines without one.
 * -EINVAL after printing file, line and reason; -ENOMEM. */
static int trace_read(const char *path, uint32_t block_size,
		      struct trace *trace)
{
	struct reader reader = {.path = path, .trace = trace};
	int r = kv_array_reserve(&trace->start, &reader.room_requests, 1);

	if (r == 0) {
		trace->start[0] = 0;
		reader.file = gzopen(path, "rb");
		r = reader.file ? read_lines(&reader, block_size)
				: refuse_line(&reader, "%s", strerror(errno));
	}
	if (reader.file)
		gzclose(reader.file);
	free(reader.text);
	tdestroy(reader.ids, free);
	return r;
}

/* ---- the simulation of a policy ---- */

struct sim {
	uint32_t capacity, used;
	bool *resident; /* for each block: it is in the cache */
	/* for each block: number of the last request for it */
	uint32_t *asked;
	uint32_t request; /* number of the current request, from 1 */
	uint64_t hits;
	struct kv_eviction eviction;
	struct kv_policy policy;
	struct kv_ghost ghost;
	struct kv_evict_node *nodes; /* eviction node of each block */
	uint32_t clock;
};

static struct kv_evict_node *node_of(void *arg, uint32_t block)
{
	return &((struct sim *)arg)->nodes[block];
}

static uint64_t hash_of(uint32_t block)
{
	uint64_t x = (block + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

/* Return whether @block may be evicted: no block of the current request may. */
static bool may_go(void *arg, uint32_t block)
{
	const struct sim *sim = arg;

	return sim->asked[block] != sim->request;
}

/* Touch the block at position @at of a request, or insert it. */
static void use_block(struct sim *sim, const uint32_t *blocks, size_t at)
{
	struct kv_policy *policy = &sim->policy;
	uint32_t block = blocks[at], victim;
	struct kv_arrival arrival = {.parent = KV_NONE,
				     .position = (uint32_t)at};

	if (!sim->resident[block] && sim->used == sim->capacity) {
		victim = kv_policy_victim(policy, may_go, sim);
		if (victim == KV_NONE)
			return;
		kv_ghost_put(&sim->ghost, hash_of(victim),
			     kv_policy_past(policy, victim));
		kv_policy_remove(policy, victim);
		sim->resident[victim] = false;
		sim->used--;
	}
	if (sim->eviction.shadow)
		kv_shadow_cache_ask(sim->eviction.shadow, hash_of(block),
				    arrival.position);
	if (sim->resident[block]) {
		kv_policy_touch(policy, block);
		return;
	}
	arrival.past = kv_ghost_take(&sim->ghost, hash_of(block));
	if (at > 0 && kv_policy_has(policy, blocks[at - 1]))
		arrival.parent = blocks[at - 1];
	policy->burst = KV_NONE;
	kv_policy_insert(policy, block, &arrival);
	sim->resident[block] = true;
	sim->used++;
}

/* Use a request's blocks in the daemon's order: hits from the tail on, new
 * blocks from the head on. */
static void run_request(struct sim *sim, const uint32_t *blocks, size_t n)
{
	size_t hits = 0;

	sim->request++;
	while (hits < n && sim->resident[blocks[hits]])
		hits++;
	sim->hits += hits;
	for (size_t i = 0; i < n; i++)
		sim->asked[blocks[i]] = sim->request;
	n = KV_MIN(n, sim->capacity);
	hits = KV_MIN(hits, n);
	for (size_t i = hits; i-- > 0;)
		use_block(sim, blocks, i);
	for (size_t i = hits; i < n; i++)
		use_block(sim, blocks, i);
	while (n-- > 0)
		if (sim->resident[blocks[n]])
			kv_policy_renew(&sim->policy, blocks[n]);
}

/*
 * Simulate the daemon's policy @policy with room for @capacity blocks, without
 * warm-up.  Hits of a request are its leading blocks that are resident without
 * a gap.  All blocks of the request are then used, and stay resident until the
 * request ends; of a request of more than @capacity blocks only the head stays.
 */
static int simulate(const struct trace *trace, const char *policy,
		    uint32_t capacity, uint64_t *ret_hits)
{
	struct sim sim = {.capacity = capacity};
	size_t room = trace->unique + 1;
	int r = -ENOMEM;

	sim.resident = calloc(room, sizeof(*sim.resident));
	sim.asked = calloc(room, sizeof(*sim.asked));
	sim.nodes = calloc(room, sizeof(*sim.nodes));
	if (sim.resident && sim.asked && sim.nodes)
		r = kv_ghost_init(
			&sim.ghost,
			KV_MAX((uint64_t)capacity * KV_GHOST_FOR_A_BLOCK,
			       KV_GHOST_MIN));
	if (r == 0)
		kv_ghost_fit(&sim.ghost, capacity);
	if (r == 0)
		r = kv_eviction_init(&sim.eviction, policy, &sim.clock, node_of,
				     &sim);
	if (r == 0)
		kv_policy_init(&sim.policy, &sim.eviction);
	for (size_t i = 0; r == 0 && i < trace->n; i++)
		run_request(&sim, trace->blocks + trace->start[i],
			    trace->start[i + 1] - trace->start[i]);
	*ret_hits = sim.hits;
	kv_eviction_fini(&sim.eviction);
	kv_ghost_fini(&sim.ghost);
	free(sim.nodes);
	free(sim.resident);
	free(sim.asked);
	return r;
}

/* ---- the offline bound ---- */

#define NEVER UINT32_MAX

struct item {
	/* number of the block's next request << 32 | its position: the highest
	 * key is evicted first */
	uint64_t key;
	uint32_t block;
};

struct bound {
	/* for each index into the trace: number of the block's next request */
	uint32_t *next;
	/* for each block: key of its valid heap item; 0: not resident */
	uint64_t *valid;
	struct item *heap;
	size_t n;
	uint32_t used;
};

static void push(struct bound *bound, struct item item)
{
	size_t i = bound->n++;

	while (i && bound->heap[(i - 1) / 2].key < item.key) {
		bound->heap[i] = bound->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	bound->heap[i] = item;
}

static struct item pop(struct bound *bound)
{
	struct item top = bound->heap[0], last = bound->heap[--bound->n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < bound->n) {
		if (child + 1 < bound->n &&
		    bound->heap[child + 1].key > bound->heap[child].key)
			child++;
		if (bound->heap[child].key <= last.key)
			break;
		bound->heap[i] = bound->heap[child];
		i = child;
	}
	bound->heap[i] = last;
	return top;
}

/*
 * Compute the hits of an offline policy: keep the blocks that are requested
 * again soonest, evict the deepest blocks of a request first, and refuse
 * admission to a block if that is better.  Prefixes stay whole, so no policy has
 * more hits.  bound.next is filled first, from the end of the trace.
 */
static int compute_bound(const struct trace *trace, uint32_t capacity,
			 uint64_t *ret_hits)
{
	const size_t asked = trace->start[trace->n], room = trace->unique + 1;
	uint32_t *coming = malloc(room * sizeof(*coming));
	struct bound bound = {
		.next = malloc((asked + 1) * sizeof(*bound.next)),
		.valid = calloc(room, sizeof(*bound.valid)),
		.heap = calloc(asked + 1, sizeof(*bound.heap)),
	};
	int r = coming && bound.next && bound.valid && bound.heap ? 0 : -ENOMEM;

	*ret_hits = 0;
	for (size_t i = 0; r == 0 && i < room; i++)
		coming[i] = NEVER;
	for (size_t q = r == 0 ? trace->n : 0; q-- > 0;) {
		for (size_t i = trace->start[q]; i < trace->start[q + 1]; i++)
			bound.next[i] = coming[trace->blocks[i]];
		for (size_t i = trace->start[q]; i < trace->start[q + 1]; i++)
			coming[trace->blocks[i]] = (uint32_t)q;
	}
	for (size_t q = 0; r == 0 && q < trace->n; q++) {
		size_t first = trace->start[q], end = trace->start[q + 1];
		size_t hits = first;

		while (hits < end && bound.valid[trace->blocks[hits]])
			hits++;
		*ret_hits += hits - first;
		for (size_t i = first; i < end; i++) {
			uint64_t *valid = &bound.valid[trace->blocks[i]];

			bound.used += !*valid;
			*valid =
				(uint64_t)bound.next[i] << 32 | (i - first + 1);
			push(&bound, (struct item){*valid, trace->blocks[i]});
		}
		while (bound.used > capacity ||
		       (bound.n && bound.heap[0].key >> 32 == NEVER)) {
			struct item item = pop(&bound);

			/* An item with another key is outdated: the block was
			 * requested again. */
			if (bound.valid[item.block] == item.key) {
				bound.valid[item.block] = 0;
				bound.used--;
			}
		}
	}
	free(coming);
	free(bound.next);
	free(bound.valid);
	free(bound.heap);
	return r;
}

/* ---- the command line ---- */

#define POLICIES 16
#define CAPACITIES 64

struct args {
	const char *policies[POLICIES];
	size_t n_policies;
	uint32_t capacities[CAPACITIES]; /* ascending, in blocks */
	size_t n_capacities;
	/* bytes of the cache, 0: not given; KV bytes of a token */
	uint64_t bytes, token_bytes;
	uint64_t block_size;
	bool json, bound;
	const char *trace;
	char *words; /* memory of the names in @policies */
};

static const char help[] =
	"usage: kvfs-replay [--policy P[,P...]] [--blocks N[,N...] | --bytes "
	"SIZE]\n"
	"  [--token-bytes N] [--block-size TOKENS] [--bound] [--json]\n"
	"  TRACE[.gz]\n"
	"policies:";

enum { BOUND = 256, HELP, JSON, WITHDRAWN };

__attribute__((format(printf, 1, 2))) static int refuse(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "kvfs-replay: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	return -EINVAL;
}

static int number(const char *name, const char *text, uint64_t most,
		  uint64_t *ret_value)
{
	char *end;
	unsigned long long value;
	static const char units[] = "KMGT";
	const char *unit;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || text[0] == '-' || errno)
		return refuse("%s %s: not a number", name, text);
	unit = *end ? strchr(units, *end) : NULL;
	if (unit && most > UINT32_MAX) {
		value <<= 10 * (unit - units + 1);
		end++;
	}
	if (*end || value == 0 || value > most)
		return refuse("%s %s: not a number from 1 to %llu", name, text,
			      (unsigned long long)most);
	*ret_value = value;
	return 0;
}

static int check_policy(const char *name)
{
	static const char *const withdrawn[] = {"arc", "s3fifo", "s3-fifo",
						"sieve"};

	for (unsigned i = 0; kv_policy_name(i); i++)
		if (strcmp(name, kv_policy_name(i)) == 0)
			return 0;
	for (size_t i = 0; i < KV_ARRAY_LEN(withdrawn); i++)
		if (strcasecmp(name, withdrawn[i]) == 0)
			return refuse("--policy %s: withdrawn, since the "
				      "daemon has no such policy",
				      name);
	return strcmp(name, "bound") == 0
		       ? 0
		       : refuse("--policy %s: there is no such policy", name);
}

static int take_policies(struct args *args, const char *text)
{
	char *save, *word;

	free(args->words);
	args->words = strdup(text);
	args->n_policies = 0;
	if (!args->words)
		return -ENOMEM;
	for (word = strtok_r(args->words, ",", &save); word;
	     word = strtok_r(NULL, ",", &save)) {
		if (check_policy(word) < 0)
			return -EINVAL;
		if (args->n_policies == POLICIES - 1)
			return refuse("--policy: too many");
		args->policies[args->n_policies++] = word;
	}
	return args->n_policies ? 0 : refuse("--policy: none is named");
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static int take_blocks(struct args *args, const char *text)
{
	char *words = strdup(text), *save, *word;
	int r = words ? 0 : -ENOMEM;

	args->n_capacities = 0;
	for (word = words ? strtok_r(words, ",", &save) : NULL; r == 0 && word;
	     word = strtok_r(NULL, ",", &save)) {
		uint64_t value = 0;

		if (args->n_capacities == CAPACITIES)
			r = refuse("--blocks: too many");
		else
			r = number("--blocks", word, UINT32_MAX / 8, &value);
		if (r == 0)
			args->capacities[args->n_capacities++] =
				(uint32_t)value;
	}
	free(words);
	if (r == 0 && args->n_capacities == 0)
		r = refuse("--blocks: no number");
	qsort(args->capacities, args->n_capacities, sizeof(args->capacities[0]),
	      by_size);
	return r;
}

/* Returns 0; 1: help was printed; -EINVAL: the error was printed. */
static int parse(int argc, char **argv, struct args *ret_args)
{
	static const struct option longs[] = {
		{"policy", required_argument, NULL, 'p'},
		{"blocks", required_argument, NULL, 'b'},
		{"bytes", required_argument, NULL, 'B'},
		{"token-bytes", required_argument, NULL, 't'},
		{"block-size", required_argument, NULL, 's'},
		{"bound", no_argument, NULL, BOUND},
		{"json", no_argument, NULL, JSON},
		{"csv", no_argument, NULL, WITHDRAWN},
		{"plot", required_argument, NULL, WITHDRAWN},
		{"mount", required_argument, NULL, WITHDRAWN},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0}};
	struct args args = {.block_size = 512, .token_bytes = 128 << 10};
	int c, r = 0;

	while (r == 0 && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		args.bound |= c == BOUND;
		args.json |= c == JSON;
		if (c == 'p')
			r = take_policies(&args, optarg);
		else if (c == 'b')
			r = take_blocks(&args, optarg);
		else if (c == 'B')
			r = number("--bytes", optarg, UINT64_MAX >> 1,
				   &args.bytes);
		else if (c == 't')
			r = number("--token-bytes", optarg, UINT64_MAX >> 1,
				   &args.token_bytes);
		else if (c == 's')
			r = number("--block-size", optarg, UINT32_MAX / 2,
				   &args.block_size);
		else if (c == WITHDRAWN)
			r = refuse("--csv, --plot and --mount are withdrawn");
		else if (c == HELP || c == '?') {
			FILE *f = c == HELP ? stdout : stderr;

			fputs(help, f);
			for (unsigned i = 0; kv_policy_name(i); i++)
				fprintf(f, " %s", kv_policy_name(i));
			fputs("\nSee kvfs-replay(1).\n", f);
			r = c == HELP ? 1 : -EINVAL;
		}
	}
	if (r == 0 && optind < argc)
		args.trace = argv[optind++];
	if (r == 0 && !args.trace)
		r = refuse("TRACE is missing; see --help");
	if (r == 0 && optind < argc)
		r = refuse("%s: one argument too many", argv[optind]);
	if (r == 0 && args.bytes && args.n_capacities)
		r = refuse("--blocks and --bytes exclude each other");
	if (r != 0) {
		free(args.words);
		return r;
	}
	for (unsigned i = 0; !args.words && kv_policy_name(i); i++)
		args.policies[args.n_policies++] = kv_policy_name(i);
	if (args.bound)
		args.policies[args.n_policies++] = "bound";
	*ret_args = args;
	return 0;
}

/* Set the capacities that depend on the trace: the defaults, or --bytes. */
static void choose_capacities(struct args *args, const struct trace *trace)
{
	static const uint32_t parts[] = {100, 50, 20, 10, 5, 2, 1};

	if (args->bytes) {
		uint64_t n =
			args->bytes / (args->token_bytes * trace->block_size);

		args->capacities[0] =
			(uint32_t)KV_MAX(1u, KV_MIN(n, UINT32_MAX / 8));
		args->n_capacities = 1;
	}
	if (args->n_capacities)
		return;
	for (size_t i = 0; i < KV_ARRAY_LEN(parts); i++) {
		uint32_t n = KV_MAX(trace->unique / parts[i], 1u);
		size_t had = args->n_capacities;

		if (!had || args->capacities[had - 1] != n)
			args->capacities[args->n_capacities++] = n;
	}
}

/* Print one result; rows of a JSON array are separated by commas. */
static void print_row(const struct args *args, const struct trace *trace,
		      const char *policy, uint32_t blocks, uint64_t hits)
{
	static bool printed;
	unsigned long long asked = trace->start[trace->n];

	if (args->json)
		printf(printed ? ",\n" : "\n");
	printed = true;
	printf(args->json ? "{\"policy\": \"%s\", \"blocks\": %u, "
			    "\"requests\": %zu, \"hits\": %llu, "
			    "\"blocks_asked\": %llu, \"hit_rate\": %.4f}"
			  : "policy=%s blocks=%u requests=%zu hits=%llu "
			    "blocks_asked=%llu hit_rate=%.4f\n",
	       policy, blocks, trace->n, (unsigned long long)hits, asked,
	       asked ? (double)hits / (double)asked : 0);
	fflush(stdout);
}

static int print_all(const struct args *args, const struct trace *trace)
{
	int r = 0;

	for (size_t p = 0; p < args->n_policies; p++)
		for (size_t c = 0; r == 0 && c < args->n_capacities; c++) {
			const char *policy = args->policies[p];
			const uint32_t blocks = args->capacities[c];
			uint64_t hits;

			r = strcmp(policy, "bound") == 0
				    ? compute_bound(trace, blocks, &hits)
				    : simulate(trace, policy, blocks, &hits);
			if (r == 0)
				print_row(args, trace, policy, blocks, hits);
		}
	return r;
}

int main(int argc, char **argv)
{
	struct trace trace = {0};
	struct args args;
	int r = parse(argc, argv, &args);

	if (r != 0)
		return r < 0 ? 2 : 0;
	r = trace_read(args.trace, (uint32_t)args.block_size, &trace);
	if (r == 0) {
		choose_capacities(&args, &trace);
		printf(args.json ? "[" : "");
		r = print_all(&args, &trace);
		printf(args.json ? "\n]\n" : "");
	}
	if (r < 0 && r != -EINVAL)
		fprintf(stderr, "kvfs-replay: %s\n", strerror(-r));
	free(trace.blocks);
	free(trace.start);
	free(args.words);
	return r < 0 || fflush(stdout) != 0 ? 1 : 0;
}
