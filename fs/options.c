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
#include <stdio.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include "cache/evict/policy.h"
#include "common/why.h"
#include "fs/options.h"
#include "fs/words.h"

/* ---- what needs to know the machine: percentages, limits, defaults ---- */

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
	while (p && statfs(p, &fs) < 0) {
		slash = strrchr(p, '/');
		if (!slash || errno != ENOENT || !slash[1])
			return;
		slash[slash == p] = '\0';
	}
	if (!p)
		return;
	*ret_total = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	*ret_free = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
}

static uint64_t settle(const struct kv_typed_size *size, uint64_t whole,
		       uint64_t otherwise)
{
	if (!size->text)
		return otherwise;
	return size->quantity.percent ? whole / 100 * size->quantity.value
				      : size->quantity.value;
}

/* What the memory may be taken from: huge pages count on their own. */
static uint64_t settle_memory(struct kv_options *o)
{
	kv_cgroup_limit("",
			o->cache.hugepages == KV_HUGE_ON ? KV_CGROUP_HUGE_PAGES
							 : KV_CGROUP_PAGES,
			&o->memory);
	return KV_MIN(memory_bytes(), o->memory.bytes);
}

static int settle_dram(struct kv_parsing *p, char **ret_why)
{
	struct kv_options *o = &p->options;
	uint64_t memory = settle_memory(o);
	const char *text = p->dram.text ? p->dram.text : "16M";

	o->cache.dram =
		settle(&p->dram, memory, KV_MAX(memory / 4, KV_DRAM_MIN));
	if (o->cache.dram < KV_DRAM_MIN)
		return kv_why(ret_why, -EINVAL,
			      "dram=%s: less than 16M, every byte passes "
			      "through it",
			      text);
	if (o->cache.dram > memory && memory == o->memory.bytes)
		return kv_why(ret_why, -EINVAL,
			      "dram=%s: the control group may have only %lluM "
			      "(%s)",
			      text, (unsigned long long)(memory >> 20),
			      o->memory.file);
	if (o->cache.dram > memory)
		return kv_why(ret_why, -EINVAL,
			      "dram=%s: the machine has only %lluM", text,
			      (unsigned long long)(memory >> 20));
	return 0;
}

static int settle_ssd(struct kv_parsing *p, char **ret_why)
{
	struct kv_options *o = &p->options;
	uint64_t total, room;

	disk_bytes(o->store, &total, &room);
	o->cache.ssd_given = p->ssd.text;
	o->cache.ssd = settle(&p->ssd, total, room / 2);
	if (o->cache.ssd_given && o->cache.ssd > 0 && o->cache.ssd < KV_SSD_MIN)
		return kv_why(ret_why, -EINVAL,
			      "ssd=%s: less than 16M (0: no SSD tier)",
			      p->ssd.text);
	return 0;
}

/* .kvfs/config shows a line for each, and messages are one. */
static int check_line(const char *name, const char *path, char **ret_why)
{
	if (!path || !strchr(path, '\n'))
		return 0;
	return kv_why(ret_why, -EINVAL, "%s: its path has a newline in it",
		      name);
}

static int check_lines(const struct kv_options *o, char **ret_why)
{
	int r = check_line("STORE", o->store, ret_why);

	if (r == 0)
		r = check_line("MOUNTPOINT", o->mountpoint, ret_why);
	return r < 0 ? r : check_line("control", o->control, ret_why);
}

static char *absolute(const char *path)
{
	_cleanup_(kv_freep) char *cwd = NULL;
	char *out;

	if (path[0] == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	if (!cwd || asprintf(&out, "%s/%s", cwd, path) < 0)
		return NULL;
	return out;
}

/* Directories are meant as they are now. */
static int settle_url(char **url)
{
	_cleanup_(kv_freep) char *path = NULL;
	char *text;

	if (strncmp(*url, "dir:", 4) != 0)
		return 0;
	path = absolute(*url + 4);
	if (!path || asprintf(&text, "dir:%s", path) < 0)
		return -ENOMEM;
	free(*url);
	*url = text;
	return 0;
}

static int settle_remotes(const struct kv_remote_config *remote, char **ret_why)
{
	for (size_t i = 0; i < remote->n; i++)
		if (settle_url(&remote->urls[i]) < 0)
			return kv_why(ret_why, -ENOMEM, "out of memory");
	return 0;
}

static int settle_paths(struct kv_parsing *p, char **argv, char **ret_why)
{
	struct kv_options *o = &p->options;
	bool none = !strcmp(argv[1], "none");
	int r;

	if (!argv[0][0])
		return kv_why(ret_why, -EINVAL, "STORE is empty");
	if (!argv[1][0])
		return kv_why(ret_why, -EINVAL, "MOUNTPOINT is empty");
	o->cache.store = o->store = absolute(argv[0]);
	if (!none)
		o->mountpoint = strdup(argv[1]);
	if (p->control)
		o->control = absolute(p->control);
	if (!o->store || (!none && !o->mountpoint) ||
	    (p->control && !o->control))
		return kv_why(ret_why, -EINVAL, "out of memory");
	r = check_lines(o, ret_why);
	if (r < 0)
		return r;
	if (o->control &&
	    strlen(o->control) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return kv_why(ret_why, -EINVAL,
			      "control=%s: longer than a socket's path may be",
			      p->control);
	return 0;
}

/* ---- the command line ---- */

/* The letters before and after the positionals. */
static int parse_letters(struct kv_parsing *p, int argc, char **argv,
			 char **ret_why)
{
	static const struct option longs[] = {{"help", 0, NULL, 'h'},
					      {"version", 0, NULL, 'V'},
					      {NULL, 0, NULL, 0}};
	const char *letters = p->by_mount ? ":o:fsnvt:N:rwhV" : ":o:fdhV";
	int c, r;

	optind = 0; /* glibc: begin anew, tests parse more than once */
	opterr = 0;
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		switch (c) {
		case 'o':
			r = kv_words_parse(p, optarg, ret_why);
			if (r < 0)
				return r;
			break;
		case 'f':
			p->options.foreground = true;
			break;
		case 'd':
			p->options.foreground = p->options.debug = true;
			break;
		case 'h':
			p->options.action = KV_SHOW_HELP;
			return 0;
		case 'V':
			p->options.action = KV_SHOW_VERSION;
			return 0;
		case 's':
			p->sloppy = true;
			break;
		case 'r':
			p->options.cache.read_only = true;
			break;
		case 'n':
		case 'v':
		case 't':
		case 'w':
			break;
		case 'N':
			return kv_why(ret_why, -EINVAL, "-N: not supported");
		case ':':
			return kv_why(ret_why, -EINVAL, "-%c: needs a value",
				      optopt);
		default:
			/* In "-xf" the x is told by optopt only. */
			if (optopt && strncmp(argv[optind - 1], "--", 2) != 0)
				return kv_why(ret_why, -EINVAL,
					      "-%c: unknown option", optopt);
			return kv_why(ret_why, -EINVAL, "%s: unknown option",
				      argv[optind - 1]);
		}
	}
	return 0;
}

static bool called_by_mount(const char *name)
{
	const char *slash = strrchr(name, '/');

	return strcmp(slash ? slash + 1 : name, "mount.kvfs") == 0;
}

static int parse(struct kv_parsing *p, int argc, char **argv, char **ret_why)
{
	struct kv_options *o = &p->options;
	int r;

	r = parse_letters(p, argc, argv, ret_why);
	if (r < 0 || (o->action != KV_RUN && o->action != KV_REMOUNT))
		return r;
	if (argc - optind < 2)
		return kv_why(ret_why, -EINVAL,
			      argc - optind < 1 ? "STORE and MOUNTPOINT missing"
						: "MOUNTPOINT missing");
	if (argc - optind > 2)
		return kv_why(ret_why, -EINVAL, "%s: one argument too many",
			      argv[optind + 2]);
	/* mount(8)'s -f does everything but the mount. */
	if (p->by_mount && o->foreground) {
		o->action = KV_FAKE;
		o->foreground = false;
	}
	r = settle_paths(p, argv + optind, ret_why);
	if (r == 0)
		r = settle_remotes(&o->cache.remote, ret_why);
	if (r < 0)
		return r;
	r = settle_dram(p, ret_why);
	if (r == 0)
		r = settle_ssd(p, ret_why);
	if (r < 0 || o->action != KV_REMOUNT)
		return r;
	o->given = kv_words_lines(p);
	return o->given ? 0 : kv_why(ret_why, -ENOMEM, "out of memory");
}

int kv_options_parse(int argc, char **argv, struct kv_options *ret_options,
		     char **ret_why)
{
	struct kv_parsing p = {
		.options = {.cache = {.segment = 256u << 20,
				      .evict = kv_policy_name(0),
				      .scrub = 20u << 20,
				      .remote.threshold = 4},
			    .rules = {.uid = geteuid(),
				      .gid = getegid(),
				      .mode = geteuid() == 0 ? 01777 : 0755},
			    .allow_other = geteuid() == 0},
		.by_mount = called_by_mount(argv[0]),
	};
	int r;

	*ret_why = NULL;
	r = parse(&p, argc, argv, ret_why);
	free(p.dram.text);
	free(p.ssd.text);
	free(p.control);
	if (r < 0) {
		kv_options_fini(&p.options);
		return r;
	}
	*ret_options = p.options;
	return 0;
}

void kv_options_help(FILE *f)
{
	fputs("usage: kvfs [-f] [-d] [-o OPTION,...] STORE MOUNTPOINT\n"
	      "       kvfs --health MOUNTPOINT|SOCKET [SECONDS]\n"
	      "\n"
	      "  -f  stay in the foreground    -d  foreground, show FUSE "
	      "requests\n"
	      "  -h  this help                 -V  version\n"
	      "\n"
	      "options:\n",
	      f);
	kv_words_print(f);
	fputs("\n"
	      "SIZE: digits with K, M, G, T, or % of memory (dram) or disk "
	      "(ssd).\n"
	      "MOUNTPOINT `none` serves the control socket only.  See "
	      "kvfs(1).\n",
	      f);
}

void kv_options_fini(struct kv_options *options)
{
	free(options->store);
	free(options->mountpoint);
	free(options->control);
	free(options->fuse);
	free(options->given);
	free(options->rules.allow);
	for (size_t i = 0; i < options->cache.remote.n; i++)
		free(options->cache.remote.urls[i]);
	free(options->cache.remote.urls);
	for (size_t i = 0; i < options->cache.remote.n_tenants; i++)
		free(options->cache.remote.tenants[i].name);
	free(options->cache.remote.tenants);
	*options = (struct kv_options){0};
}
