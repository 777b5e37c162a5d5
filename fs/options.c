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
 *   (3) A word of -o that takes a value is refused without one, and the
 *       reverse.
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
#include "fs/base/quantity.h"

/* A size whose limits depend on the machine: kept as typed, for messages. */
struct size {
	struct kv_quantity quantity;
	char *text; /* NULL: not given */
};

struct parsing {
	struct kv_options options;
	bool by_mount; /* called as mount.kvfs */
	bool sloppy;   /* -s: unknown words are passed over */
	struct size dram, ssd;
	char *control;
};

/* ---- the words of -o ---- */

struct word {
	const char *name;
	/* Put @value (NULL: this word has none) to @where: 0, or -errno with
	 * the reason in *@ret_why, a constant. */
	int (*take)(const struct word *word, void *where, const char *value,
		    const char **ret_why);
	size_t where;	    /* in struct parsing */
	const char *values; /* as the usage shows them; NULL: takes none */
};

static int take_size(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	struct size *size = where;
	int r = kv_quantity_parse(value, &size->quantity);

	(void)word;
	*ret_why = r == -ERANGE ? "too large"
		   : r < 0	? "not a size (digits, then K, M, G, T or %)"
				: "out of memory";
	if (r < 0)
		return r;
	free(size->text);
	size->text = strdup(value);
	return size->text ? 0 : -ENOMEM;
}

static int take_bytes(const struct word *word, void *where, const char *value,
		      const char **ret_why)
{
	int r = kv_bytes_parse(value, where);

	(void)word;
	*ret_why = r == -ERANGE ? "too large"
				: "not a size (digits, then K, M, G or T)";
	return r;
}

static int take_segment(const struct word *word, void *where, const char *value,
			const char **ret_why)
{
	uint64_t *bytes = where;
	int r = take_bytes(word, where, value, ret_why);

	if (r < 0)
		return r;
	*ret_why = "less than 8M";
	if (*bytes < KV_SEGMENT_MIN)
		return -EINVAL;
	*bytes -= *bytes % KV_SEGMENT_UNIT;
	return 0;
}

/* The place of @value among @word's values becomes an enumerator. */
static int take_choice(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	const char *choice = word->values;
	unsigned *place = where;
	size_t len;

	*ret_why = word->values;
	for (unsigned i = 0; *choice; i++) {
		len = strcspn(choice, "|");
		if (strlen(value) == len && !memcmp(value, choice, len)) {
			*place = i;
			return 0;
		}
		choice += len + (choice[len] == '|');
	}
	return -EINVAL;
}

static int take_policy(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	const char **policy = where, *name;

	(void)word;
	*ret_why = "no policy of this name";
	for (unsigned i = 0; (name = kv_policy_name(i)); i++)
		if (!strcmp(value, name)) {
			*policy = name;
			return 0;
		}
	return -EINVAL;
}

static int take_path(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	char **path = where;

	(void)word;
	free(*path);
	*path = strdup(value);
	*ret_why = "out of memory";
	return *path ? 0 : -ENOMEM;
}

static int take_id(const struct word *word, void *where, const char *value,
		   const char **ret_why)
{
	uint64_t n = 0;
	int r = kv_number_parse(value, 10, UINT32_MAX - 1, &n);

	(void)word;
	*ret_why = "not a number from 0 to 4294967294";
	if (r == 0)
		*(uint32_t *)where = (uint32_t)n;
	return r;
}

static int take_mode(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	uint64_t n = 0;
	int r = kv_number_parse(value, 8, 0777, &n);

	(void)word;
	*ret_why = "not an octal number up to 777";
	if (r == 0)
		*(uint32_t *)where = (uint32_t)n;
	return r;
}

/* The sticky bit, too: without it whoever may write removes others' spaces. */
static int take_root_mode(const struct word *word, void *where,
			  const char *value, const char **ret_why)
{
	uint64_t n = 0;
	int r = kv_number_parse(value, 8, 01777, &n);

	(void)word;
	*ret_why = "not an octal number up to 1777";
	if (r == 0)
		*(uint32_t *)where = (uint32_t)n;
	return r;
}

/* Numbers of users, and of groups behind an @, with colons between them. */
static int take_allow(const struct word *word, void *where, const char *value,
		      const char **ret_why)
{
	_cleanup_(kv_freep) char *copy = strdup(value);
	char *rest = copy, *text;
	struct kv_rules *rules = where;
	uint64_t n = 0;

	(void)word;
	*ret_why = "out of memory";
	free(kv_steal(rules->allow));
	rules->n_allow = 0;
	rules->allow = calloc(strlen(value) + 1, sizeof(*rules->allow));
	if (!copy || !rules->allow)
		return -ENOMEM;
	*ret_why = "not numbers of users, or of groups behind an @, with "
		   "colons between them";
	while ((text = strsep(&rest, ":"))) {
		struct kv_id *id = &rules->allow[rules->n_allow++];

		id->is_group = *text == '@';
		if (kv_number_parse(text + id->is_group, 10, UINT32_MAX - 1,
				    &n) < 0)
			return -EINVAL;
		id->id = (uint32_t)n;
	}
	return 0;
}

static int take_yes(const struct word *word, void *where, const char *value,
		    const char **ret_why)
{
	(void)word;
	(void)value;
	(void)ret_why;
	*(bool *)where = true;
	return 0;
}

static int take_no(const struct word *word, void *where, const char *value,
		   const char **ret_why)
{
	(void)word;
	(void)value;
	(void)ret_why;
	*(bool *)where = false;
	return 0;
}

/* The word itself is FUSE's. */
static int take_fuse(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	char **all = where, *longer;

	(void)value;
	*ret_why = "out of memory";
	if (asprintf(&longer, "%s%s%s", *all ? *all : "", *all ? "," : "",
		     word->name) < 0)
		return -ENOMEM;
	free(*all);
	*all = longer;
	return 0;
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
static char *absolute_url(const char *url)
{
	_cleanup_(kv_freep) char *path = NULL;
	char *text;

	if (strncmp(url, "dir:", 4) != 0)
		return strdup(url);
	path = absolute(url + 4);
	return path && asprintf(&text, "dir:%s", path) >= 0 ? text : NULL;
}

/* The daemon's directory is another one. */
static bool names_relative(const char *url, const char *word)
{
	const bool web =
		strncmp(url, "http", 4) == 0 || strncmp(url, "s3:", 3) == 0;
	const char *at = web ? strpbrk(url, "?&") : NULL;

	for (; at; at = strpbrk(at + 1, "?&"))
		if (strncmp(at + 1, word, strlen(word)) == 0 &&
		    at[1 + strlen(word)] != '/')
			return true;
	return false;
}

/* One more, every time. */
static int take_remote(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	struct kv_remote_config *remote = where;
	char **more = realloc(remote->urls, (remote->n + 1) * sizeof(*more));

	(void)word;
	*ret_why = "out of memory";
	if (!more)
		return -ENOMEM;
	remote->urls = more;
	*ret_why = "of no kind that is known";
	if (!kv_remote_knows(value))
		return -EINVAL;
	*ret_why = "without a directory";
	if (strcmp(value, "dir:") == 0)
		return -EINVAL;
	*ret_why = "credentials= and ca= take paths that begin with /";
	if (names_relative(value, "credentials=") ||
	    names_relative(value, "ca="))
		return -EINVAL;
	*ret_why = "out of memory";
	more[remote->n] = absolute_url(value);
	if (!more[remote->n])
		return -ENOMEM;
	remote->n++;
	return 0;
}

static int take_threshold(const struct word *word, void *where,
			  const char *value, const char **ret_why)
{
	uint64_t n = 0;
	int r = kv_number_parse(value, 10, 65536, &n);

	(void)word;
	*ret_why = "not a number up to 65536";
	if (r == 0)
		*(uint32_t *)where = (uint32_t)n;
	return r;
}

/* It becomes a part of names of files, paths and URLs; numbers are users that have
 * none. */
static bool is_tenant_name(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz"
				"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");

	return n > 0 && n <= KV_REMOTE_NAME_MAX && name[n] == '\0' &&
	       strspn(name, "0123456789") < n;
}

static bool is_taken(const struct kv_remote_config *remote, const char *name)
{
	for (size_t i = 0; i < remote->n_tenants; i++)
		if (strcmp(remote->tenants[i].name, name) == 0)
			return true;
	return false;
}

/* UID:NAME; one more, every time. */
static int take_tenant(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	struct kv_remote_config *remote = where;
	_cleanup_(kv_freep) char *copy = strdup(value);
	struct kv_remote_name *more;
	char *name = copy;
	uint64_t uid = 0;

	(void)word;
	*ret_why = "out of memory";
	more = realloc(remote->tenants,
		       (remote->n_tenants + 1) * sizeof(*more));
	if (!copy || !more)
		return -ENOMEM;
	remote->tenants = more;
	strsep(&name, ":");
	*ret_why =
		"not UID:NAME, a name of letters, digits, - and _ that is no "
		"number";
	if (!name || !is_tenant_name(name) ||
	    kv_number_parse(copy, 10, UINT32_MAX - 1, &uid) < 0)
		return -EINVAL;
	*ret_why = "another user has that name";
	if (is_taken(remote, name))
		return -EINVAL;
	more[remote->n_tenants].uid = (uint32_t)uid;
	more[remote->n_tenants].name = strdup(name);
	*ret_why = "out of memory";
	if (!more[remote->n_tenants].name)
		return -ENOMEM;
	remote->n_tenants++;
	return 0;
}

#define AT(field) offsetof(struct parsing, field)

static const struct word known[] = {
	{"dram", take_size, AT(dram), "SIZE"},
	{"ssd", take_size, AT(ssd), "SIZE"},
	{"segment", take_segment, AT(options.cache.segment), "SIZE"},
	{"hugepages", take_choice, AT(options.cache.hugepages), "auto|on|off"},
	{"writeback", take_choice, AT(options.cache.writeback),
	 "all|reuse|none"},
	{"evict", take_policy, AT(options.cache.evict), "POLICY"},
	{"scrub", take_bytes, AT(options.cache.scrub), "RATE"},
	{"ssd_write", take_bytes, AT(options.cache.ssd_write), "SIZE"},
	{"arena", take_choice, AT(options.cache.arena), "auto|sealed|rw"},
	{"control", take_path, AT(control), "PATH"},
	{"uid", take_id, AT(options.rules.uid), "N"},
	{"gid", take_id, AT(options.rules.gid), "N"},
	{"root_mode", take_root_mode, AT(options.rules.mode), "OCTAL"},
	{"umask", take_mode, AT(options.umask), "OCTAL"},
	{"allow", take_allow, AT(options.rules), "ID:..."},
	{"mkdir", take_choice, AT(options.rules.mkdir), "all|operator"},
	{"root", take_choice, AT(options.rules.squash), "operator|squash"},
	{"allow_other", take_yes, AT(options.allow_other), NULL},
	{"ro", take_yes, AT(options.cache.read_only), NULL},
	{"rw", take_no, AT(options.cache.read_only), NULL},
	{"noexec", take_fuse, AT(options.fuse), NULL},
	{"remote", take_remote, AT(options.cache.remote), "URL"},
	{"remote_write", take_choice, AT(options.cache.remote.write),
	 "all|reuse|none"},
	{"remote_threshold", take_threshold, AT(options.cache.remote.threshold),
	 "N"},
	{"remote_rate", take_bytes, AT(options.cache.remote.rate), "RATE"},
	{"remote_tenant", take_tenant, AT(options.cache.remote), "UID:NAME"},
	{"remote_optional", take_yes, AT(options.cache.remote.optional), NULL},
};

/* Words that mount(8) and fstab say to every filesystem.  A mount of kvfs has
 * no device files, no set-uid programs and no access times in the kernel. */
static bool is_standard(const char *word)
{
	static const char *const words[] = {"defaults",	  "default_permissions",
					    "nofail",	  "_netdev",
					    "auto",	  "noauto",
					    "atime",	  "noatime",
					    "relatime",	  "norelatime",
					    "nodiratime", "diratime",
					    "lazytime",	  "nolazytime",
					    "suid",	  "nosuid",
					    "dev",	  "nodev",
					    "exec",	  "user",
					    "users",	  "nouser",
					    "owner",	  "group",
					    "async",	  "silent",
					    "loud",	  "strictatime",
					    "nosymfollow"};

	for (size_t i = 0; i < KV_ARRAY_LEN(words); i++)
		if (strcmp(word, words[i]) == 0)
			return true;
	return strncmp(word, "x-", 2) == 0 || strncmp(word, "X-", 2) == 0 ||
	       strncmp(word, "comment=", 8) == 0 ||
	       strncmp(word, "user=", 5) == 0;
}

static const struct word *find_word(const char *name, size_t len)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++)
		if (strlen(known[i].name) == len &&
		    !memcmp(known[i].name, name, len))
			return &known[i];
	return NULL;
}

static int parse_word(struct parsing *p, const char *text, char **ret_why)
{
	const char *equals = strchr(text, '=');
	size_t len = equals ? (size_t)(equals - text) : strlen(text);
	const struct word *word = find_word(text, len);
	const char *why = NULL;

	if (!word) {
		if (is_standard(text) || p->sloppy)
			return 0;
		return kv_why(ret_why, -EINVAL, "%s: unknown option", text);
	}
	if (word->values && (!equals || !equals[1]))
		return kv_why(ret_why, -EINVAL, "%s: needs a value", text);
	if (!word->values && equals)
		return kv_why(ret_why, -EINVAL, "%s: takes no value", text);
	if (word->take(word, (char *)p + word->where,
		       equals ? equals + 1 : NULL, &why) == 0)
		return 0;
	return kv_why(ret_why, -EINVAL, "%s: %s%s", text,
		      why == word->values ? "not one of " : "", why);
}

/* An argument of -o; the same word again replaces the one before. */
static bool is_remount(const char *text)
{
	static const char word[] = "remount";
	const char *at = text;

	while ((at = strstr(at, word))) {
		const char *end = at + strlen(word);

		if ((at == text || at[-1] == ',') &&
		    (*end == ',' || *end == '\0'))
			return true;
		at = end;
	}
	return false;
}

static int parse_words(struct parsing *p, const char *text, char **ret_why)
{
	_cleanup_(kv_freep) char *copy = strdup(text);
	char *rest = copy, *word;
	int r;

	if (!copy)
		return -ENOMEM;
	/* mount(8) then repeats what the kernel knows of the mount. */
	if (is_remount(text)) {
		p->options.action = KV_REMOUNT;
		p->sloppy = true;
	}
	while ((word = strsep(&rest, ","))) {
		if (!*word)
			continue;
		r = parse_word(p, word, ret_why);
		if (r < 0)
			return r;
	}
	return 0;
}

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

static uint64_t settle(const struct size *size, uint64_t whole,
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

static int settle_dram(struct parsing *p, char **ret_why)
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

static int settle_ssd(struct parsing *p, char **ret_why)
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

static int settle_paths(struct parsing *p, char **argv, char **ret_why)
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
static int parse_letters(struct parsing *p, int argc, char **argv,
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
			r = parse_words(p, optarg, ret_why);
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

static int parse(struct parsing *p, int argc, char **argv, char **ret_why)
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
	if (r < 0)
		return r;
	r = settle_dram(p, ret_why);
	if (r < 0)
		return r;
	return settle_ssd(p, ret_why);
}

int kv_options_parse(int argc, char **argv, struct kv_options *ret_options,
		     char **ret_why)
{
	struct parsing p = {
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

/* The words with their values, in lines of at most 78 columns. */
static void print_words(FILE *f)
{
	char text[128];
	int n, column = 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++) {
		const struct word *word = &known[i];

		n = snprintf(text, sizeof(text), " %s%s%s", word->name,
			     word->values ? "=" : "",
			     word->values && word->take != take_policy
				     ? word->values
				     : "");
		for (unsigned j = 0;
		     word->take == take_policy && kv_policy_name(j); j++)
			n += snprintf(text + n, sizeof(text) - (size_t)n,
				      "%s%s", j ? "|" : "", kv_policy_name(j));
		if (column == 0 || column + n > 78)
			column = fprintf(f, "%s ", column ? "\n" : "") - 1;
		column += fprintf(f, "%s", text);
	}
}

void kv_options_help(FILE *f)
{
	fputs("usage: kvfs [-f] [-d] [-o OPTION,...] STORE MOUNTPOINT\n"
	      "       kvfs --health MOUNTPOINT|SOCKET [SECONDS]\n"
	      "       kvfs --forget [-t SECONDS] PATH...\n"
	      "\n"
	      "  -f  stay in the foreground    -d  foreground, show FUSE "
	      "requests\n"
	      "  -h  this help                 -V  version\n"
	      "\n"
	      "options:\n",
	      f);
	print_words(f);
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
	free(options->rules.allow);
	for (size_t i = 0; i < options->cache.remote.n; i++)
		free(options->cache.remote.urls[i]);
	free(options->cache.remote.urls);
	for (size_t i = 0; i < options->cache.remote.n_tenants; i++)
		free(options->cache.remote.tenants[i].name);
	free(options->cache.remote.tenants);
	*options = (struct kv_options){0};
}
