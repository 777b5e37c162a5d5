/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-demo: one engine process of the demo (tools/demo/demo.sh).
 *
 * OWNS      the engine.
 *
 * LOCKING   none; one thread.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "tools/demo/llama.h"
#include "tools/demo/own.h"
#include "tools/demo/reference.h"
#include "tools/demo/steps.h"
#include "tools/demo/synthetic.h"

struct options {
	struct kv_setting setting;
	const char *model; /* NULL: synthetic */
};

static const struct command {
	const char *name;
	int (*run)(struct kv_engine *engine, const struct kv_setting *setting);
	long blocks;
} commands[] = {
	{"prefill-save", kv_step_save, 0},
	{"load", kv_step_load, KV_PROMPT_BLOCKS},
	{"load-half", kv_step_load, KV_PROMPT_SHARED},
	{"share", kv_step_share, KV_PROMPT_SHARED},
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
