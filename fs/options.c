/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - the daemon's command line: one table of the options of -o, then
 * the letters and arguments, and the values that depend on the machine.
 *
 * OWNS      nothing beyond the caller's struct kv_options.
 *
 * INVARIANTS
 *   (1) An unknown option is refused, by name, before the store is touched.
 *   (2) An option that takes a value is refused without one, and an option that
 *       takes none is refused with one.
 *   (3) A repeated option replaces its earlier value, except for options that
 *       may be given several times.
 *   (4) After a successful parse every field has its final value.
 *   (5) A file of a control group that is absent, or has no number, limits nothing.
 *       Limits are read only from below a mount of control groups.
 *
 * LOCKING   none: the parser runs before any thread starts, and uses the
 *           process's getopt(3) state.
 */
#include <getopt.h>
#include <stdio.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include "cache/evict/policy.h"
#include "common/bytes.h"
#include "fs/base/quantity.h"
#include "fs/base/stats.h"
#include "fs/daemon.h"

/* A size whose limits depend on the machine; messages show the text as typed. */
struct typed_size {
	struct kv_quantity quantity;
	char *text; /* text as typed; NULL: the option was not given */
};

/* State of the parser of the command line. */
struct parsing {
	struct kv_options options; /* first */
	bool by_mount;		   /* the program was called as mount.kvfs */
	bool sloppy;		   /* -s: unknown options are ignored */
	struct typed_size dram, ssd;
};

/* Where the value of an option is printed. */
enum shown {
	NOWHERE, /* options.c does not print it in .kvfs/config */
	ALWAYS,	 /* in .kvfs/config */
	REMOTE,	 /* in .kvfs/config if a remote tier is configured */
};

/* A row of the table of options.  A new option needs a row, a field of a
 * configuration with its default in kv_options_parse(), and code that uses the
 * field. */
struct word {
	const char *name;
	/* Parse @value (NULL: the option takes none) and store the result at @where.
	 * Returns 0, or -errno with a constant text in *@ret_why. */
	int (*take)(const struct word *word, void *where, const char *value,
		    const char **ret_why);
	size_t where;	    /* offset of the value in struct parsing */
	const char *values; /* form of the value; NULL: option without value */
	enum shown shown;
	unsigned base; /* base of a number: 8 or 10 */
	uint64_t max;
};

/* ---- values ---- */

static int take_size(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	struct typed_size *size = where;
	int r = kv_quantity_parse(value, &size->quantity);

	(void)word;
	*ret_why =
		r == -ERANGE ? "too large"
		: r < 0 ? "not a size (digits, then K, M, G, T, or 1% to 100%)"
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

/* Store the position of @value in word->values, such as 1 for "on" in
 * "auto|on|off". */
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

	*ret_why = word->values;
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

/* Append a directory for segment files. */
static int take_store(const struct word *word, void *where, const char *value,
		      const char **ret_why)
{
	struct kv_cache_config *cache = where;
	size_t n = strlen(value);

	(void)word;
	*ret_why = "at most eight directories beside STORE";
	if (cache->n_more == KV_STORES_MAX)
		return -EINVAL;
	*ret_why = "not a path that begins with /, without a newline";
	if (value[0] != '/' || strchr(value, '\n'))
		return -EINVAL;
	while (n > 1 && value[n - 1] == '/')
		n--;
	*ret_why = "out of memory";
	cache->more[cache->n_more] = strndup(value, n);
	if (!cache->more[cache->n_more])
		return -ENOMEM;
	cache->n_more++;
	return 0;
}

/* Store a number of base word->base, at most word->max. */
static int take_number(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	uint64_t n = 0;
	int r = kv_number_parse(value, word->base, word->max, &n);

	*ret_why = word->base == 8 ? "not an octal number, or too large"
				   : "not a number, or too large";
	if (r == 0)
		*(uint32_t *)where = (uint32_t)n;
	return r;
}

/* Store user numbers, and group numbers with an @ in front, separated by colons; or none
 * for "all". */
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
	*ret_why = "neither \"all\" nor numbers of users, or of groups behind "
		   "an @, with colons between them";
	if (strcmp(copy, "all") == 0)
		return 0;
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

/* Set the flag of an option; `rw` clears that of `ro`. */
static int take_flag(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	(void)value;
	(void)ret_why;
	*(bool *)where = strcmp(word->name, "rw") != 0;
	return 0;
}

/* Append the option's name to the options that are passed to FUSE. */
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

/* Return true if the parameter @word of @url is a relative path, which the daemon
 * would look up in another working directory. */
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

static int take_remote(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	struct kv_remote_config *remote = where;

	(void)word;
	*ret_why = "there is one remote tier, and it has its URL already";
	if (remote->url)
		return -EINVAL;
	*ret_why = "not supported any more: run a gateway, such as "
		   "kvfs-remote-mooncake, and mount http+unix:SOCKET";
	if (strncmp(value, "helper:", 7) == 0 ||
	    strncmp(value, "mooncake:", 9) == 0)
		return -EINVAL;
	*ret_why = "not one of dir:PATH, http://HOST, https://HOST, "
		   "http+unix:SOCKET, s3://BUCKET";
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
	remote->url = strdup(value);
	return remote->url ? 0 : -ENOMEM;
}

/* Append one tenant, UID:NAME.  The name becomes part of file names, paths and URLs.  A
 * number is refused, because users without a name are called by their number. */
static int take_tenant(const struct word *word, void *where, const char *value,
		       const char **ret_why)
{
	struct kv_remote_config *remote = where;
	_cleanup_(kv_freep) char *copy = strdup(value);
	struct kv_remote_name *more;
	char *name = copy;
	uint64_t uid = 0;
	size_t n;

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
	n = name ? strspn(name, "abcdefghijklmnopqrstuvwxyz"
				"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
		 : 0;
	if (n == 0 || n > KV_REMOTE_NAME_MAX || name[n] != '\0' ||
	    strspn(name, "0123456789") == n ||
	    kv_number_parse(copy, 10, UINT32_MAX - 1, &uid) < 0)
		return -EINVAL;
	*ret_why = "another user has that name";
	for (size_t i = 0; i < remote->n_tenants; i++)
		if (strcmp(remote->tenants[i].name, name) == 0)
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
#define CACHE(field) offsetof(struct parsing, options.cache.field)
#define RULES(field) offsetof(struct parsing, options.rules.field)

static const struct word known[] = {
	{"dram", take_size, AT(dram), "SIZE", ALWAYS},
	{"ssd", take_size, AT(ssd), "SIZE", NOWHERE},
	{"store", take_store, AT(options.cache), "DIR", ALWAYS},
	{"ssd_evict", take_flag, CACHE(ssd_evict), NULL, NOWHERE},
	{"segment", take_segment, CACHE(segment), "SIZE", ALWAYS},
	{"hugepages", take_choice, CACHE(hugepages), "auto|on|off", ALWAYS},
	{"writeback", take_choice, CACHE(writeback), "all|reuse|none", ALWAYS},
	{"evict", take_policy, CACHE(evict), "lhd|flru|lru", ALWAYS},
	{"scrub", take_bytes, CACHE(scrub), "RATE", ALWAYS},
	{"ssd_write", take_bytes, CACHE(ssd_write), "SIZE", ALWAYS},
	{"why", take_number, CACHE(why), "N", ALWAYS, 10, 1u << 30},
	{"arena", take_choice, CACHE(arena), "auto|sealed|rw", ALWAYS},
	{"control", take_path, AT(options.control), "PATH", NOWHERE},
	{"idle", take_number, AT(options.idle), "SECONDS", ALWAYS, 10,
	 UINT32_MAX},
	{"uid", take_number, RULES(uid), "N", ALWAYS, 10, UINT32_MAX - 1},
	{"gid", take_number, RULES(gid), "N", ALWAYS, 10, UINT32_MAX - 1},
	/* Without the sticky bit, users who may write to the root directory can
	 * remove each other's spaces. */
	{"root_mode", take_number, RULES(mode), "OCTAL", ALWAYS, 8, 01777},
	{"umask", take_number, AT(options.umask), "OCTAL", ALWAYS, 8, 0777},
	{"allow", take_allow, AT(options.rules), "all|ID:...", ALWAYS},
	{"mkdir", take_choice, RULES(mkdir), "all|operator", ALWAYS},
	{"root", take_choice, RULES(squash), "operator|squash", ALWAYS},
	{"allow_other", take_flag, AT(options.allow_other), NULL, ALWAYS},
	{"ro", take_flag, CACHE(read_only), NULL, ALWAYS},
	{"rw", take_flag, CACHE(read_only), NULL, NOWHERE},
	{"seccomp", take_choice, AT(options.seccomp), "on|off", NOWHERE},
	{"noexec", take_fuse, AT(options.fuse), NULL, NOWHERE},
	{"remote", take_remote, CACHE(remote), "URL", REMOTE},
	{"remote_write", take_choice, CACHE(remote.write), "all|reuse|none",
	 REMOTE},
	{"remote_threshold", take_number, CACHE(remote.threshold), "N", REMOTE,
	 10, 65536},
	{"remote_rate", take_bytes, CACHE(remote.rate), "RATE", REMOTE},
	{"remote_tenant", take_tenant, CACHE(remote), "UID:NAME", REMOTE},
	{"remote_secret", take_path, CACHE(remote.secret), "FILE", REMOTE},
	{"remote_optional", take_flag, CACHE(remote.optional), NULL, REMOTE},
	{"remote_unsafe", take_flag, CACHE(remote.unsafe), NULL, REMOTE},
};

static void print_word(FILE *f, const struct word *word,
		       const struct kv_options *o)
{
	const struct kv_remote_config *remote = &o->cache.remote;
	const void *at = (const char *)o + word->where;
	const char *choice = word->values;

	if (word->take == take_tenant) {
		for (size_t i = 0; i < remote->n_tenants; i++)
			fprintf(f, "remote_tenant=%u:%s\n",
				remote->tenants[i].uid,
				remote->tenants[i].name);
		return;
	}
	if (word->take == take_store) {
		for (unsigned i = 0; i < o->cache.n_more; i++)
			fprintf(f, "store_dir=%s\n", o->cache.more[i]);
		return;
	}
	if ((word->take == take_flag && word->shown == REMOTE &&
	     !*(const bool *)at) ||
	    (at == &remote->secret && !remote->secret))
		return;
	fputs(word->name, f);
	if (word->take == take_flag && word->shown != REMOTE)
		fprintf(f, "=%d", *(const bool *)at);
	else if (word->take == take_remote)
		fprintf(f, "=%s", remote->url);
	else if (word->take == take_size)
		fprintf(f, "=%llu", (unsigned long long)o->cache.dram);
	else if (word->take == take_segment || word->take == take_bytes)
		fprintf(f, "=%llu", (unsigned long long)*(const uint64_t *)at);
	else if (word->take == take_policy)
		fprintf(f, "=%s", *(const char *const *)at);
	else if (word->take == take_path)
		fprintf(f, "=%s", *(char *const *)at);
	else if (word->take == take_number && word->base == 10)
		fprintf(f, "=%u", *(const uint32_t *)at);
	else if (word->take == take_number)
		fprintf(f, "=%0*o", word->max > 0777 ? 4 : 3,
			*(const uint32_t *)at);
	if (word->take == take_choice) {
		for (unsigned i = *(const unsigned *)at; i > 0; i--)
			choice += strcspn(choice, "|") + 1;
		fprintf(f, "=%.*s", (int)strcspn(choice, "|"), choice);
	}
	if (word->take == take_allow) {
		fputs(o->rules.n_allow == 0 ? "=all" : "=", f);
		for (size_t i = 0; i < o->rules.n_allow; i++)
			fprintf(f, "%s%s%u", i ? ":" : "",
				o->rules.allow[i].is_group ? "@" : "",
				o->rules.allow[i].id);
	}
	fputc('\n', f);
}

void kv_options_print(FILE *f, const struct kv_options *o)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++)
		if (known[i].shown == ALWAYS ||
		    (known[i].shown == REMOTE && o->cache.remote.url))
			print_word(f, &known[i], o);
}

/* ---- the options of -o ---- */

/* Return true if @word, which is not empty, is in @list, where commas separate words. */
static bool has_word(const char *list, const char *word)
{
	const size_t n = strlen(word);

	for (const char *at = list; (at = strstr(at, word)); at += n)
		if ((at == list || at[-1] == ',') &&
		    (at[n] == ',' || at[n] == '\0'))
			return true;
	return false;
}

/* Return true for an option that mount(8) and fstab pass to every filesystem.
 * kvfs ignores these options: a mount has no device files, set-uid programs or
 * access times. */
static bool is_standard(const char *word)
{
	static const char words[] =
		"defaults,default_permissions,nofail,_netdev,auto,noauto,"
		"atime,noatime,relatime,norelatime,nodiratime,diratime,"
		"lazytime,nolazytime,suid,nosuid,dev,nodev,exec,user,users,"
		"nouser,owner,group,async,silent,loud,strictatime,nosymfollow";

	return (!strchr(word, ',') && has_word(words, word)) ||
	       strncmp(word, "x-", 2) == 0 || strncmp(word, "X-", 2) == 0 ||
	       strncmp(word, "comment=", 8) == 0 ||
	       strncmp(word, "user=", 5) == 0;
}

static int parse_word(struct parsing *p, const char *text, char **ret_why)
{
	const char *equals = strchr(text, '='), *why = NULL;
	size_t len = equals ? (size_t)(equals - text) : strlen(text), i = 0;
	const struct word *word;

	while (i < KV_ARRAY_LEN(known) &&
	       (strlen(known[i].name) != len ||
		memcmp(known[i].name, text, len) != 0))
		i++;
	if (i == KV_ARRAY_LEN(known)) {
		if (is_standard(text) || p->sloppy)
			return 0;
		return kv_why(ret_why, -EINVAL, "%s: unknown option", text);
	}
	word = &known[i];
	if (word->values && (!equals || !equals[1]))
		return kv_why(ret_why, -EINVAL, "%s: needs a value", text);
	if (!word->values && equals)
		return kv_why(ret_why, -EINVAL, "%s: takes no value", text);
	if (word->take(word, (char *)p + word->where,
		       equals ? equals + 1 : NULL, &why) < 0)
		return kv_why(ret_why, -EINVAL, "%s: %s%s", text,
			      why == word->values ? "not one of " : "", why);
	return 0;
}

/* Parse options separated by commas; "\," is a comma within a value. */
static int parse_words(struct parsing *p, const char *text, char **ret_why)
{
	_cleanup_(kv_freep) char *copy = strdup(text);
	char *from = copy, *word, *to;
	int r;

	if (!copy)
		return -ENOMEM;
	/* Check for `remount` first: mount(8) adds options that would fail. */
	if (has_word(text, "remount"))
		return kv_why(ret_why, -EINVAL,
			      "remount: not supported: unmount, and mount with "
			      "the new options");
	while (from) {
		for (word = to = from; *from && *from != ','; *to++ = *from++)
			from += from[0] == '\\' && from[1] == ',';
		from = *from ? from + 1 : NULL;
		*to = '\0';
		r = *word ? parse_word(p, word, ret_why) : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- values that depend on the machine: percentages, limits, defaults ---- */

static FILE *open_file(const char *root, const char *path)
{
	_cleanup_(kv_freep) char *whole = NULL;

	if (asprintf(&whole, "%s%s", root, path) < 0)
		return NULL;
	return fopen(whole, "re");
}

/* Find the control group of this process: the line "0::PATH" of
 * /proc/self/cgroup. */
static bool find_group(const char *root, char ret_group[PATH_MAX])
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = open_file(root, "/proc/self/cgroup");
	bool found = false;
	size_t room = 0;

	while (f && !found && getline(&line, &room, f) > 0) {
		found = strncmp(line, "0::", 3) == 0;
		if (found)
			snprintf(ret_group, PATH_MAX, "%.*s",
				 (int)strcspn(line + 3, "\n"), line + 3);
	}
	if (f)
		fclose(f);
	return found;
}

static void read_limit(const char *root, const char *dir, const char *name,
		       struct kv_cgroup_limit *limit)
{
	char path[PATH_MAX];
	unsigned long long bytes;
	FILE *f;

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >=
	    (int)sizeof(path))
		return;
	f = open_file(root, path);
	if (!f)
		return;
	if (fscanf(f, "%llu", &bytes) == 1 && bytes < limit->bytes) {
		limit->bytes = bytes;
		memcpy(limit->file, path, sizeof(path));
	}
	fclose(f);
}

void kv_cgroup_limit(const char *root, bool huge_pages,
		     struct kv_cgroup_limit *ret_limit)
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = open_file(root, "/proc/self/mountinfo");
	char group[PATH_MAX], top[PATH_MAX], at[PATH_MAX], dir[PATH_MAX];
	size_t room = 0, len;

	*ret_limit = (struct kv_cgroup_limit){.bytes = UINT64_MAX};
	while (f && getline(&line, &room, f) > 0) {
		const char *type = strstr(line, " - cgroup2 ");
		const char *below = group;

		if (!type || !find_group(root, group) ||
		    sscanf(line, "%*s %*s %*s %4095s %4095s", top, at) != 2)
			continue;
		/* A control group outside of the mounted part has no visible
		 * files; the nearest visible group is the mounted one. */
		len = strcmp(top, "/") == 0 ? 0 : strlen(top);
		if (strncmp(group, top, len) != 0 ||
		    (group[len] != '/' && group[len] != '\0'))
			below = "";
		else
			below += len;
		if (strstr(below, "/..") || strcmp(below, "/") == 0)
			below = "";
		if (snprintf(dir, sizeof(dir), "%s%s", at, below) >=
		    (int)sizeof(dir))
			continue;
		while (strlen(dir) >= strlen(at)) {
			if (huge_pages) {
				read_limit(root, dir, "hugetlb.2MB.max",
					   ret_limit);
			} else {
				read_limit(root, dir, "memory.max", ret_limit);
				read_limit(root, dir, "memory.high", ret_limit);
			}
			*strrchr(dir, '/') = '\0';
		}
	}
	if (f)
		fclose(f);
}

/* Return the size and the free bytes of the filesystem that holds @path, or that
 * will hold it once created; 0 on any error. */
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

static uint64_t settle(const struct typed_size *size, uint64_t whole,
		       uint64_t otherwise)
{
	if (!size->text)
		return otherwise;
	return size->quantity.percent ? whole / 100 * size->quantity.value
				      : size->quantity.value;
}

static int settle_sizes(struct parsing *p, char **ret_why)
{
	const char *text = p->dram.text ? p->dram.text : "16M";
	struct kv_cache_config *cache = &p->options.cache;
	struct kv_cgroup_limit *limit = &p->options.memory;
	uint64_t memory, total, room;

	kv_cgroup_limit("", cache->hugepages == KV_HUGE_ON, limit);
	memory = (uint64_t)sysconf(_SC_PHYS_PAGES) *
		 (uint64_t)sysconf(_SC_PAGESIZE);
	memory = KV_MIN(memory, limit->bytes);
	cache->dram = settle(&p->dram, memory, KV_MAX(memory / 4, KV_DRAM_MIN));
	if (cache->dram < KV_DRAM_MIN)
		return kv_why(ret_why, -EINVAL,
			      "dram=%s: less than 16M, every byte passes "
			      "through it",
			      text);
	if (cache->dram > memory && memory == limit->bytes)
		return kv_why(ret_why, -EINVAL,
			      "dram=%s: the control group may have only %lluM "
			      "(%s)",
			      text, (unsigned long long)(memory >> 20),
			      limit->file);
	if (cache->dram > memory)
		return kv_why(ret_why, -EINVAL,
			      "dram=%s: the machine has only %lluM", text,
			      (unsigned long long)(memory >> 20));
	disk_bytes(cache->store, &total, &room);
	cache->ssd_given = p->ssd.text;
	cache->ssd = settle(&p->ssd, total, room / 2);
	if (cache->ssd_given && cache->ssd > 0 && cache->ssd < KV_SSD_MIN)
		return kv_why(ret_why, -EINVAL,
			      "ssd=%s: less than 16M (0: no SSD tier)",
			      p->ssd.text);
	return 0;
}

/* Make the path at *@path + @skip absolute, unless *@path is NULL. */
static int make_absolute(char **path, int skip, char **ret_why)
{
	_cleanup_(kv_freep) char *cwd = NULL;
	char *whole;

	if (!*path || (*path)[skip] == '/')
		return 0;
	cwd = getcwd(NULL, 0);
	if (!cwd ||
	    asprintf(&whole, "%.*s%s/%s", skip, *path, cwd, *path + skip) < 0)
		return kv_why(ret_why, -ENOMEM, "out of memory");
	free(*path);
	*path = whole;
	return 0;
}

/* Make the paths of all options absolute. */
static int settle_paths(struct parsing *p, char **argv, char **ret_why)
{
	struct kv_options *o = &p->options;
	struct kv_remote_config *remote = &o->cache.remote;
	const bool none = !strcmp(argv[1], "none");
	int r;

	if (!argv[0][0])
		return kv_why(ret_why, -EINVAL, "STORE is empty");
	if (!argv[1][0])
		return kv_why(ret_why, -EINVAL, "MOUNTPOINT is empty");
	o->store = strdup(argv[0]);
	if (!none)
		o->mountpoint = strdup(argv[1]);
	if (!o->store || (!none && !o->mountpoint))
		return kv_why(ret_why, -ENOMEM, "out of memory");
	r = make_absolute(&o->store, 0, ret_why);
	if (r == 0)
		r = make_absolute(&o->control, 0, ret_why);
	if (r == 0)
		r = make_absolute(&remote->secret, 0, ret_why);
	if (r == 0 && remote->url && strncmp(remote->url, "dir:", 4) == 0)
		r = make_absolute(&remote->url, 4, ret_why);
	if (r < 0)
		return r;
	o->cache.store = o->store;
	/* Refuse newlines: .kvfs/config and messages are read by lines. */
	for (unsigned i = 0; i < 3; i++) {
		const char *const names[] = {"STORE", "MOUNTPOINT", "control"};
		const char *of[] = {o->store, o->mountpoint, o->control};

		if (of[i] && strchr(of[i], '\n'))
			return kv_why(ret_why, -EINVAL,
				      "%s: its path has a newline in it",
				      names[i]);
	}
	if (o->control &&
	    strlen(o->control) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return kv_why(ret_why, -EINVAL,
			      "control=%s: longer than a socket's path may be",
			      o->control);
	return 0;
}

/* ---- the command line ---- */

/* Parse option letters, such as -o, before and after positional arguments. */
static int parse_letters(struct parsing *p, int argc, char **argv,
			 char **ret_why)
{
	static const struct option longs[] = {{"help", 0, NULL, 'h'},
					      {"version", 0, NULL, 'V'},
					      {NULL, 0, NULL, 0}};
	const char *letters = p->by_mount ? ":o:fsnvt:N:rwhV" : ":o:fdhV";
	int c, r;

	/* 0 resets getopt(3): tests parse several command lines */
	optind = 0;
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
			/* For "-xf" only optopt has the unknown x. */
			if (optopt && strncmp(argv[optind - 1], "--", 2) != 0)
				return kv_why(ret_why, -EINVAL,
					      "-%c: unknown option", optopt);
			return kv_why(ret_why, -EINVAL, "%s: unknown option",
				      argv[optind - 1]);
		}
	}
	return 0;
}

bool kv_mount_called(const char *name)
{
	const char *slash = strrchr(name, '/');

	return strcmp(slash ? slash + 1 : name, "mount.kvfs") == 0;
}

static int parse(struct parsing *p, int argc, char **argv, char **ret_why)
{
	struct kv_options *o = &p->options;
	int r;

	r = parse_letters(p, argc, argv, ret_why);
	if (r < 0 || o->action != KV_RUN)
		return r;
	if (!p->by_mount && argc > optind && argv[optind][0] &&
	    !strchr(argv[optind], '/') && access(argv[optind], F_OK) < 0)
		return kv_why(ret_why, -EINVAL,
			      "%s: neither a command nor a directory: for a "
			      "new store write ./%s",
			      argv[optind], argv[optind]);
	if (argc - optind < 2)
		return kv_why(ret_why, -EINVAL,
			      argc - optind < 1 ? "STORE and MOUNTPOINT missing"
						: "MOUNTPOINT missing");
	if (argc - optind > 2)
		return kv_why(ret_why, -EINVAL, "%s: one argument too many",
			      argv[optind + 2]);
	/* mount(8) calls with -f to check everything, but not to mount. */
	if (p->by_mount && o->foreground) {
		o->action = KV_FAKE;
		o->foreground = false;
	}
	r = settle_paths(p, argv + optind, ret_why);
	if (r == 0)
		r = settle_sizes(p, ret_why);
	return r;
}

int kv_options_parse(int argc, char **argv, struct kv_options *ret_options,
		     char **ret_why)
{
	struct parsing p = {
		.options = {.cache = {.segment = 256u << 20,
				      .evict = kv_policy_name(0),
				      .scrub = 20u << 20,
				      .why = 1u << 20,
				      .remote.threshold = 4},
			    .rules = {.uid = geteuid(),
				      .gid = getegid(),
				      .mode = geteuid() == 0 ? 01777 : 0755,
				      .mkdir = UINT_MAX}},
		.by_mount = kv_mount_called(argv[0]),
	};
	struct kv_options *o = &p.options;
	struct kv_rules *rules = &o->rules;
	int r;

	*ret_why = NULL;
	r = parse(&p, argc, argv, ret_why);
	free(p.dram.text);
	free(p.ssd.text);
	/* A mount of root that says nothing of other users is root's alone: it
	 * admits user 0, also if that is no operator (root=squash). */
	o->closed = geteuid() == 0 && !rules->allow && rules->mkdir != 0;
	if (rules->mkdir == UINT_MAX)
		rules->mkdir = o->closed;
	o->allow_other |= geteuid() == 0 && !o->closed;
	if (r == 0 && o->closed) {
		rules->allow = calloc(1, sizeof(*rules->allow));
		rules->n_allow = 1;
		r = rules->allow ? 0 : -ENOMEM;
	}
	if (r < 0) {
		kv_options_fini(&p.options);
		return r;
	}
	*ret_options = p.options;
	return 0;
}

void kv_options_help(FILE *f)
{
	char text[128];
	int n, column = 0;

	fputs("usage: kvfs [-f] [-d] [-o OPTION,...] STORE MOUNTPOINT\n"
	      "       kvfs COMMAND ...    see kvfs-commands(1)\n"
	      "       kvfs --health MOUNTPOINT|SOCKET [SECONDS]\n"
	      "\n"
	      "  -f  stay in the foreground    -d  foreground, show FUSE "
	      "requests\n"
	      "  -h  this help                 -V  version\n"
	      "\n"
	      "options:\n",
	      f);
	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++) {
		const struct word *word = &known[i];

		n = snprintf(text, sizeof(text), " %s%s%s", word->name,
			     word->values ? "=" : "",
			     word->values ? word->values : "");
		if (column == 0 || column + n > 78)
			column = fprintf(f, "%s ", column ? "\n" : "") - 1;
		column += fprintf(f, "%s", text);
	}
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
	for (unsigned i = 0; i < options->cache.n_more; i++)
		free(options->cache.more[i]);
	free(options->cache.remote.url);
	free(options->cache.remote.secret);
	for (size_t i = 0; i < options->cache.remote.n_tenants; i++)
		free(options->cache.remote.tenants[i].name);
	free(options->cache.remote.tenants);
	*options = (struct kv_options){0};
}
