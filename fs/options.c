/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - the daemon's command line.
 *
 * OWNS      nothing beyond the caller's struct kv_options.
 *
 * INVARIANTS
 *   (1) Whatever is not understood is refused, by name, before anything on
 *       disk is looked at for writing.
 *   (2) After a successful parse every field has its final value.
 *
 * LOCKING   none: runs before any thread; getopt's state is the process's.
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include "fs/options.h"
#include "fs/words.h"

const char kv_options_help[] =
	"usage: kvfs [-f] [-d] [-o OPTION,...] STORE MOUNTPOINT\n"
	"\n"
	"  -f  stay in the foreground    -d  foreground, show FUSE requests\n"
	"  -h  this help                 -V  version\n"
	"\n"
	"options: dram=SIZE ssd=SIZE segment=SIZE hugepages=auto|on|off\n"
	"  writeback=all|reuse|none evict=lhd|flru|lru scrub=RATE "
	"ssd_write=SIZE\n"
	"  arena=sealed|rw control=PATH allow_other uid=N gid=N umask=OCTAL "
	"ro\n"
	"SIZE: digits with K, M, G, T, or % of memory (dram) or disk (ssd).\n"
	"MOUNTPOINT `none` serves the control socket only.  See kvfs(1).\n";

static uint64_t memory_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) *
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Of the filesystem that holds @path or, if that is not there yet, would. */
static void disk_bytes(const char *path, uint64_t *ret_total,
		       uint64_t *ret_free)
{
	_cleanup_(kv_freep) char *p = strdup(path);
	struct statfs fs;
	char *slash;

	*ret_total = *ret_free = 0;
	while (p != NULL && statfs(p, &fs) < 0) {
		slash = strrchr(p, '/');
		if (slash == NULL || errno != ENOENT || slash[1] == '\0')
			return;
		slash[slash == p] = '\0';
	}
	if (p == NULL)
		return;
	*ret_total = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	*ret_free = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
}

static char *absolute(const char *path)
{
	_cleanup_(kv_freep) char *cwd = NULL;
	char *out;

	if (path[0] == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	if (cwd == NULL || asprintf(&out, "%s/%s", cwd, path) < 0)
		return NULL;
	return out;
}

__attribute__((format(printf, 2, 3))) static int refuse(char **ret_why,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (vasprintf(ret_why, format, args) < 0)
		*ret_why = NULL;
	va_end(args);
	return -EINVAL;
}

/* Percentages, limits and defaults: what needs to know the machine. */
static int settle_dram(struct kv_options *o, const struct kv_words *words,
		       char **ret_why)
{
	uint64_t memory = memory_bytes();

	o->dram = !words->dram_given	? memory / 4
		  : words->dram.percent ? memory / 100 * words->dram.value
					: words->dram.value;
	if (!words->dram_given)
		o->dram = KV_MAX(o->dram, KV_DRAM_MIN);
	if (o->dram < KV_DRAM_MIN)
		return refuse(ret_why,
			      "dram=%s: less than 16M, every byte passes "
			      "through it",
			      words->dram_text);
	if (o->dram > memory)
		return refuse(ret_why, "dram=%s: the machine has only %lluM",
			      words->dram_text,
			      (unsigned long long)(memory >> 20));
	return 0;
}

static int settle_ssd(struct kv_options *o, const struct kv_words *words,
		      char **ret_why)
{
	uint64_t total, room;

	disk_bytes(o->store, &total, &room);
	o->ssd_given = words->ssd_given;
	o->ssd = !words->ssd_given    ? room / 2
		 : words->ssd.percent ? total / 100 * words->ssd.value
				      : words->ssd.value;
	if (words->ssd_given && o->ssd > 0 && o->ssd < KV_SSD_MIN)
		return refuse(ret_why, "ssd=%s: less than 16M (0: no SSD tier)",
			      words->ssd_text);
	return 0;
}

static int settle_paths(struct kv_options *o, const struct kv_words *words,
			char **argv, char **ret_why)
{
	if (argv[0][0] == '\0')
		return refuse(ret_why, "STORE is empty");
	if (argv[1][0] == '\0')
		return refuse(ret_why, "MOUNTPOINT is empty");
	o->store = absolute(argv[0]);
	if (strcmp(argv[1], "none") != 0)
		o->mountpoint = strdup(argv[1]);
	if (words->control != NULL)
		o->control = absolute(words->control);
	if (o->store == NULL ||
	    (strcmp(argv[1], "none") != 0 && o->mountpoint == NULL) ||
	    (words->control != NULL && o->control == NULL))
		return refuse(ret_why, "out of memory");
	if (o->control != NULL &&
	    strlen(o->control) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return refuse(ret_why,
			      "control=%s: longer than a socket's path may be",
			      words->control);
	return 0;
}

/* The letters before and after the positionals; -o goes to words.c. */
static int parse_letters(int argc, char **argv, struct kv_options *o,
			 struct kv_words *words, char **ret_why)
{
	static const struct option longs[] = {{"help", 0, NULL, 'h'},
					      {"version", 0, NULL, 'V'},
					      {NULL, 0, NULL, 0}};
	const char *letters = words->by_mount ? ":o:fsnvt:N:rwhV" : ":o:fdhV";
	int c, r;

	optind = 0; /* glibc: begin anew, tests parse more than once */
	opterr = 0;
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		switch (c) {
		case 'o':
			r = kv_words_parse(words, o, optarg, ret_why);
			if (r < 0)
				return r;
			break;
		case 'f':
			o->foreground = true;
			break;
		case 'd':
			o->foreground = o->debug = true;
			break;
		case 'h':
			o->action = KV_SHOW_HELP;
			return 0;
		case 'V':
			o->action = KV_SHOW_VERSION;
			return 0;
		case 's':
			words->sloppy = true;
			break;
		case 'r':
			o->read_only = true;
			break;
		case 'n':
		case 'v':
		case 't':
		case 'w':
			break;
		case 'N':
			return refuse(ret_why, "-N: not supported");
		case ':':
			return refuse(ret_why, "-%c: needs a value", optopt);
		default:
			/* In "-xf" the x is told by optopt only. */
			if (optopt && strncmp(argv[optind - 1], "--", 2) != 0)
				return refuse(ret_why, "-%c: unknown option",
					      optopt);
			return refuse(ret_why, "%s: unknown option",
				      argv[optind - 1]);
		}
	}
	return 0;
}

static bool called_by_mount(const char *name)
{
	const char *slash = strrchr(name, '/');

	return strcmp(slash != NULL ? slash + 1 : name, "mount.kvfs") == 0;
}

static int parse(int argc, char **argv, struct kv_options *o,
		 struct kv_words *words, char **ret_why)
{
	int r;

	r = parse_letters(argc, argv, o, words, ret_why);
	if (r < 0 || o->action != KV_RUN)
		return r;
	if (argc - optind < 2)
		return refuse(ret_why, argc - optind < 1
					       ? "STORE and MOUNTPOINT missing"
					       : "MOUNTPOINT missing");
	if (argc - optind > 2)
		return refuse(ret_why, "%s: one argument too many",
			      argv[optind + 2]);
	/* mount(8)'s -f does everything but the mount. */
	if (words->by_mount && o->foreground) {
		o->action = KV_FAKE;
		o->foreground = false;
	}
	r = settle_paths(o, words, argv + optind, ret_why);
	if (r < 0)
		return r;
	r = settle_dram(o, words, ret_why);
	if (r < 0)
		return r;
	return settle_ssd(o, words, ret_why);
}

int kv_options_parse(int argc, char **argv, struct kv_options *ret_options,
		     char **ret_why)
{
	struct kv_options o = {
		.segment = 256u << 20,
		.evict = "lhd",
		.scrub = 20u << 20,
		.allow_other = geteuid() == 0,
	};
	struct kv_words words = {.by_mount = called_by_mount(argv[0])};
	int r;

	*ret_why = NULL;
	r = parse(argc, argv, &o, &words, ret_why);
	kv_words_fini(&words);
	if (r < 0) {
		kv_options_fini(&o);
		return r;
	}
	*ret_options = o;
	return 0;
}

void kv_options_fini(struct kv_options *options)
{
	free(options->store);
	free(options->mountpoint);
	free(options->control);
	*options = (struct kv_options){0};
}

struct kv_cache_config kv_options_cache(const struct kv_options *options)
{
	return (struct kv_cache_config){
		.store = options->store,
		.dram = options->dram,
		.ssd = options->ssd,
		.ssd_given = options->ssd_given,
		.segment = options->segment,
		.hugepages = options->hugepages,
		.writeback = options->writeback,
		.evict = options->evict,
		.scrub = options->scrub,
		.ssd_write = options->ssd_write,
		.read_only = options->read_only,
		.rw_arena = options->rw_arena,
	};
}
