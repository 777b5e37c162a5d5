/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-demo: one engine process of the demo (tools/demo/demo.sh), and
 * its life: prompt, match, load, prefill, save, generate.
 *
 * OWNS      the engine; the client and the state of the one sequence, for one
 *           step.
 *
 * LOCKING   none; one thread.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "tools/demo/client.h"
#include "tools/demo/llama.h"
#include "tools/demo/own.h"
#include "tools/demo/reference.h"
#include "tools/demo/synthetic.h"

#define GENERATED (sizeof(((struct kv_answer *)0)->tokens) / sizeof(uint32_t))
#define TEXT_MAX 65536u
#define ROUNDS 5 /* of loading from DRAM */

struct setting {
	const char *mount, *work; /* the kvfs mount; a directory for notes */
	const char *text, *other; /* files */
	long blocks;		  /* that the prompt must match */
};

struct step {
	struct kv_engine *engine;
	const struct setting *setting;
	struct kv_seqshape shape;
	uint32_t tokens[KV_PROMPT_TOKENS];
	struct kv_client *client;
	struct kv_reference *reference;
};

static void step_finip(struct step *step)
{
	kv_client_close(step->client);
	kv_reference_close(step->reference);
}

static void releasep(kvfs_lease **lease)
{
	kvfs_release(*lease);
}

/* ---- the prompt ---- */

static int tokens_of(struct kv_engine *engine, const char *path,
		     uint32_t *ret_tokens, size_t n)
{
	_cleanup_(kv_freep) char *text = malloc(TEXT_MAX);
	_cleanup_(kv_fclosep) FILE *file = fopen(path, "re");
	size_t len;
	long got;

	if (!text)
		return -ENOMEM;
	if (!file) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return -ENOENT;
	}
	len = fread(text, 1, TEXT_MAX, file);
	got = engine->ops->tokenise(engine, text, len, ret_tokens, n);
	if (got < 0)
		return (int)got;
	if ((size_t)got < n) {
		fprintf(stderr, "%s: only %ld tokens\n", path, got);
		return -ENODATA;
	}
	return 0;
}

/*
 * The first KV_PROMPT_TOKENS tokens of the file @path; or, with @other, the
 * first KV_PROMPT_SHARED blocks of those, and then the tokens of @other.
 * -ENODATA: a text is too short.
 */
static int read_prompt(struct kv_engine *engine, const char *path,
		       const char *other, uint32_t *ret_tokens)
{
	size_t shared = KV_PROMPT_SHARED * KV_SEQ_TOKENS;
	int r;

	r = tokens_of(engine, path, ret_tokens, KV_PROMPT_TOKENS);
	if (r < 0 || !other)
		return r;
	return tokens_of(engine, other, ret_tokens + shared,
			 KV_PROMPT_TOKENS - shared);
}

/* ---- the engine ---- */

static int state_of(struct kv_engine *engine, struct kv_seqstate **ret_state)
{
	uint8_t *data;
	size_t len;
	int r;

	r = engine->ops->state_get(engine, &data, &len);
	return r < 0 ? r : kv_seqstate_parse(data, len, ret_state);
}

/* The shape of the model's states, learnt from a sequence of one token. */
static int shape_of(struct kv_engine *engine, uint32_t token,
		    struct kv_seqshape *ret_shape)
{
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	int r;

	r = engine->ops->decode(engine, &token, 1);
	if (r < 0)
		return r;
	r = state_of(engine, &state);
	if (r < 0)
		return r;
	engine->ops->clear(engine);
	*ret_shape = state->shape;
	return 0;
}

/* Decode the prompt from token @first on.  The loadable part and the tail
 * apart, as the first engine did; @ret_seconds is for the loadable part. */
static int prefill(struct step *step, size_t first, double *ret_seconds)
{
	size_t whole = KV_PROMPT_BLOCKS * KV_SEQ_TOKENS;
	struct kv_engine *engine = step->engine;
	double start = kv_seconds();
	int r = 0;

	if (first < whole)
		r = engine->ops->decode(engine, step->tokens + first,
					whole - first);
	*ret_seconds = kv_seconds() - start;
	if (r < 0)
		return r;
	return engine->ops->decode(engine, step->tokens + whole,
				   KV_PROMPT_TOKENS - whole);
}

/* The digest of all logits seen so far, and of the last token's. */
static int logits_add(struct kv_engine *engine, kvfs_key *logits)
{
	kvfs_key both[2];
	size_t bytes;
	const void *data = engine->ops->logits(engine, &bytes);
	int r;

	memset(both, 0, sizeof(both));
	both[0] = *logits;
	r = kvfs_key_fold(data, bytes, &both[1]);
	return r < 0 ? r : kvfs_key_fold(both, sizeof(both), logits);
}

static int generate(struct kv_engine *engine, struct kv_answer *ret_answer)
{
	char piece[256];
	size_t i;
	long n;
	int r;

	memset(ret_answer, 0, sizeof(*ret_answer));
	printf("    generated: \"");
	for (i = 0; i < GENERATED; i++) {
		r = logits_add(engine, &ret_answer->logits);
		if (r < 0)
			return r;
		ret_answer->tokens[i] = engine->ops->next(engine);
		n = engine->ops->piece(engine, ret_answer->tokens[i], piece,
				       sizeof(piece));
		for (long c = 0; c < n; c++)
			putchar(piece[c] == '\n' ? ' ' : piece[c]);
		r = engine->ops->decode(engine, &ret_answer->tokens[i], 1);
		if (r < 0)
			return r;
	}
	printf("\"\n");
	return 0;
}

/* ---- parts of steps ---- */

static int begin(struct step *step, const char *other)
{
	int r;

	r = read_prompt(step->engine, step->setting->text, other, step->tokens);
	if (r < 0)
		return r;
	r = shape_of(step->engine, step->tokens[0], &step->shape);
	if (r < 0)
		return r;
	return kv_client_open(step->setting->mount, step->engine, &step->shape,
			      step->tokens, &step->client);
}

static int match(struct step *step, long expected)
{
	long hit = kv_client_match(step->client);

	if (hit < 0)
		return (int)hit;
	printf("    matched %ld of %u blocks: %ld tokens need no prefill\n",
	       hit, KV_PROMPT_BLOCKS, hit * KV_SEQ_TOKENS);
	if (hit == expected)
		return 0;
	fprintf(stderr, "DIFFERS: the match should be %ld blocks\n", expected);
	return -EILSEQ;
}

/* Note the outcome of a comparison. */
static int verified(struct step *step, long bytes)
{
	if (bytes < 0)
		return (int)bytes;
	return kv_report_add(step->setting->work, "verified", (double)bytes);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Load what is in DRAM now, and note the median. */
static int load_warm(struct step *step, struct kv_seqstate *state)
{
	double seconds[ROUNDS];
	kvfs_lease *lease;
	size_t i;
	int r;

	for (i = 0; i < ROUNDS; i++) {
		kv_seqstate_poison(state);
		r = kv_client_load(step->client, state, &lease, &seconds[i]);
		if (r < 0)
			return r;
		kvfs_release(lease);
		r = verified(step,
			     kv_reference_state(step->reference, state, 0,
						kv_seqstate_pages(state)));
		if (r < 0)
			return r;
	}
	qsort(seconds, ROUNDS, sizeof(*seconds), by_value);
	printf("    loaded from DRAM in %.4f s\n", seconds[ROUNDS / 2]);
	return kv_report_add(step->setting->work, "load_dram",
			     seconds[ROUNDS / 2]);
}

/* Load @state's pages and compare them in each place where they can be seen. */
static int load(struct step *step, struct kv_seqstate *state)
{
	size_t n = kv_seqstate_pages(state);
	_cleanup_(releasep) kvfs_lease *lease = NULL;
	int r, cold = kv_client_is_cold(step->client, n);
	double seconds;

	r = kv_client_load(step->client, state, &lease, &seconds);
	if (r < 0)
		return r;
	printf("    loaded from %s in %.4f s\n", cold ? "SSD" : "DRAM",
	       seconds);
	if (cold && n == KV_PROMPT_BLOCKS)
		r = kv_report_add(step->setting->work, "load_ssd_cold",
				  seconds);
	if (r == 0)
		r = verified(step,
			     kv_reference_state(step->reference, state, 0, n));
	if (r == 0)
		r = verified(step,
			     kv_reference_lease(step->reference, lease, n));
	return r;
}

static int restore(struct step *step, const struct kv_seqstate *state)
{
	double seconds, start = kv_seconds();
	int r;

	r = step->engine->ops->state_set(step->engine, state->data, state->len);
	seconds = kv_seconds() - start;
	if (r < 0 || kv_seqstate_pages(state) < KV_PROMPT_BLOCKS)
		return r;
	return kv_report_add(step->setting->work, "restore", seconds);
}

/* The blocks from @first on were computed again: they have the same bits, and
 * are saved for the next engine. */
static int save_rest(struct step *step, long first)
{
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	struct kv_save_times times;
	long fresh;
	int r;

	r = state_of(step->engine, &state);
	if (r < 0)
		return r;
	r = verified(step, kv_reference_state(step->reference, state,
					      (size_t)first, KV_PROMPT_BLOCKS));
	if (r < 0)
		return r;
	fresh = kv_client_save(step->client, state, (size_t)first, &times);
	if (fresh < 0)
		return (int)fresh;
	printf("    computed %ld blocks again, the same bytes; %ld new\n",
	       KV_PROMPT_BLOCKS - first, fresh);
	return match(step, KV_PROMPT_BLOCKS);
}

static int note_save(struct step *step, const struct kv_save_times *times,
		     double prefilled)
{
	const struct {
		const char *name;
		double value;
	} figures[] = {
		{"prefill", prefilled},
		{"save_sealed", times->sealed},
		{"save_durable", times->durable},
		{"blocks", (double)KV_PROMPT_BLOCKS},
		{"tokens", (double)KV_PROMPT_BLOCKS * KV_SEQ_TOKENS},
		{"bytes", (double)KV_PROMPT_BLOCKS *
				  (double)kv_seqshape_block(&step->shape)},
	};
	size_t i;
	int r = 0;

	for (i = 0; r == 0 && i < sizeof(figures) / sizeof(*figures); i++)
		r = kv_report_add(step->setting->work, figures[i].name,
				  figures[i].value);
	return r;
}

/* ---- steps ---- */

static int prefill_save(struct step *step)
{
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	struct kv_save_times times;
	double seconds;
	long fresh;
	int r;

	r = prefill(step, 0, &seconds);
	if (r < 0)
		return r;
	printf("    prefilled %u tokens in %.2f s\n",
	       KV_PROMPT_BLOCKS * KV_SEQ_TOKENS, seconds);
	r = state_of(step->engine, &state);
	if (r < 0)
		return r;
	r = kv_reference_write(step->setting->work, step->client, state);
	if (r < 0)
		return r;
	fresh = kv_client_save(step->client, state, 0, &times);
	if (fresh < 0)
		return (int)fresh;
	printf("    saved %ld blocks: sealed after %.4f s, durable after %.4f "
	       "s\n",
	       fresh, times.sealed, times.durable);
	if (fresh != KV_PROMPT_BLOCKS)
		return -EEXIST;
	return note_save(step, &times, seconds);
}

/*
 * Prefill the text, save its blocks until durable, generate, and keep all of
 * it below @work as the reference for the other steps.
 */
static int step_save(struct kv_engine *engine, const struct setting *setting)
{
	_cleanup_(step_finip) struct step step = {.engine = engine,
						  .setting = setting};
	struct kv_answer answer;
	int r;

	r = begin(&step, NULL);
	if (r < 0)
		return r;
	r = match(&step, 0);
	if (r < 0)
		return r;
	r = prefill_save(&step);
	if (r < 0)
		return r;
	r = generate(engine, &answer);
	return r < 0 ? r : kv_answer_write(setting->work, &answer);
}

/* From the match to the engine that has the whole prompt. */
static int match_load_prefill(struct step *step)
{
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	long hit = step->setting->blocks;
	double seconds;
	int r;

	r = kv_reference_open(step->setting->work, &step->shape,
			      &step->reference);
	if (r < 0)
		return r;
	r = match(step, hit);
	if (r < 0)
		return r;
	r = kv_seqstate_new(&step->shape, (uint32_t)hit * KV_SEQ_TOKENS,
			    &state);
	if (r < 0)
		return r;
	r = load(step, state);
	if (r == 0 && hit == KV_PROMPT_BLOCKS)
		r = load_warm(step, state);
	if (r == 0)
		r = verified(step,
			     kv_reference_files(step->reference, step->client,
						(size_t)hit));
	if (r == 0)
		r = restore(step, state);
	if (r < 0)
		return r;
	return prefill(step, (size_t)hit * KV_SEQ_TOKENS, &seconds);
}

/*
 * Match exactly @blocks of the text, load them, compute the rest, generate:
 * every byte, token and logit is the reference's.  The rest is saved again.
 */
static int step_load(struct kv_engine *engine, const struct setting *setting)
{
	_cleanup_(step_finip) struct step step = {.engine = engine,
						  .setting = setting};
	struct kv_answer expected, answer;
	int r;

	r = kv_answer_read(setting->work, &expected);
	if (r < 0)
		return r;
	r = begin(&step, NULL);
	if (r < 0)
		return r;
	r = match_load_prefill(&step);
	if (r == 0 && setting->blocks < KV_PROMPT_BLOCKS)
		r = save_rest(&step, setting->blocks);
	if (r < 0)
		return r;
	r = generate(engine, &answer);
	if (r < 0)
		return r;
	r = kv_answer_compare(&expected, &answer);
	if (r == 0)
		printf("    the same %zu tokens, the same logits\n", GENERATED);
	return r;
}

/*
 * The same for a prompt that begins as the text does and goes on with the
 * other: it matches @blocks and generates what it does without kvfs.
 */
static int step_share(struct kv_engine *engine, const struct setting *setting)
{
	_cleanup_(step_finip) struct step step = {.engine = engine,
						  .setting = setting};
	struct kv_answer with, without;
	double seconds;
	int r;

	r = begin(&step, setting->other);
	if (r < 0)
		return r;
	r = match_load_prefill(&step);
	if (r < 0)
		return r;
	r = generate(engine, &with);
	if (r < 0)
		return r;
	printf("    and without kvfs:\n");
	engine->ops->clear(engine);
	r = prefill(&step, 0, &seconds);
	if (r < 0)
		return r;
	r = generate(engine, &without);
	if (r < 0)
		return r;
	r = kv_answer_compare(&without, &with);
	if (r == 0)
		printf("    the same %zu tokens, the same logits\n", GENERATED);
	return r;
}

/* ---- the command line ---- */

struct options {
	struct setting setting;
	const char *model; /* NULL: synthetic */
};

static const struct command {
	const char *name;
	int (*run)(struct kv_engine *engine, const struct setting *setting);
	long blocks;
} commands[] = {
	{"prefill-save", step_save, 0},
	{"load", step_load, KV_PROMPT_BLOCKS},
	{"load-half", step_load, KV_PROMPT_SHARED},
	{"share", step_share, KV_PROMPT_SHARED},
};

static const struct option words[] = {
	{"synthetic", no_argument, NULL, 's'},
	{"model", required_argument, NULL, 'm'},
	{"mount", required_argument, NULL, 'k'},
	{"work", required_argument, NULL, 'w'},
	{"text", required_argument, NULL, 't'},
	{"other", required_argument, NULL, 'o'},
	{NULL, 0, NULL, 0},
};

static int usage(void)
{
	fprintf(stderr,
		"usage: kvfs-demo --synthetic|--model DIR --mount DIR\n"
		"                 --work DIR --text FILE --other FILE COMMAND\n"
		"commands: prefill-save, load, load-half, share, table\n");
	return 2;
}

/* Returns 0, or -EINVAL. */
static int parse(int argc, char **argv, struct options *options)
{
	int c, synthetic = 0;

	while ((c = getopt_long(argc, argv, "", words, NULL)) != -1) {
		switch (c) {
		case 's':
			synthetic = 1;
			break;
		case 'm':
			options->model = optarg;
			break;
		case 'k':
			options->setting.mount = optarg;
			break;
		case 'w':
			options->setting.work = optarg;
			break;
		case 't':
			options->setting.text = optarg;
			break;
		case 'o':
			options->setting.other = optarg;
			break;
		default:
			return -EINVAL;
		}
	}
	if (optind != argc - 1 || !options->setting.work ||
	    !options->setting.mount || !options->setting.text ||
	    !options->setting.other || synthetic == !!options->model)
		return -EINVAL;
	return 0;
}

static int run(const struct command *command, struct options *options)
{
	_cleanup_(kv_engine_freep) struct kv_engine *engine = NULL;
	int r;

	r = options->model ? kv_llama_open(options->model, &engine)
			   : kv_synthetic_open(&engine);
	if (r < 0)
		return r;
	options->setting.blocks = command->blocks;
	return command->run(engine, &options->setting);
}

int main(int argc, char **argv)
{
	struct options options = {.model = NULL};
	size_t i;
	int r;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (parse(argc, argv, &options) < 0)
		return usage();
	if (strcmp(argv[optind], "table") == 0)
		return kv_report_print(options.setting.work) < 0;
	for (i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(argv[optind], commands[i].name) != 0)
			continue;
		r = run(&commands[i], &options);
		if (r < 0)
			fprintf(stderr, "kvfs-demo %s: %s\n", commands[i].name,
				r == -EILSEQ ? "something differs"
					     : strerror(-r));
		return r < 0;
	}
	return usage();
}
