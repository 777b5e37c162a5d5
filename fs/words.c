/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.c - the words of -o.
 *
 * OWNS      nothing beyond the caller's struct kv_parsing.
 *
 * INVARIANTS
 *   (1) A word that takes a value is refused without one, and the reverse.
 *   (2) The same word again replaces the one before, but for those of which
 *       there may be several.
 *
 * LOCKING   none: runs before any thread.
 */
#include <stdio.h>

#include "cache/evict/policy.h"
#include "common/why.h"
#include "fs/words.h"

struct word {
	const char *name;
	/* Put @value (NULL: this word has none) to @where: 0, or -errno with
	 * the reason in *@ret_why, a constant. */
	int (*take)(const struct word *word, void *where, const char *value,
		    const char **ret_why);
	size_t where;	    /* in struct kv_parsing */
	const char *values; /* as the usage shows them; NULL: takes none */
};

static int take_size(const struct word *word, void *where, const char *value,
		     const char **ret_why)
{
	struct kv_typed_size *size = where;
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
	*ret_why =
		"not one of dir:PATH, http://HOST, https://HOST, s3://BUCKET, "
		"helper:PROGRAM, mooncake:CONFIG";
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
	more[remote->n] = strdup(value);
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

#define AT(field) offsetof(struct kv_parsing, field)

static const struct word known[] = {
	{"dram", take_size, AT(dram), "SIZE"},
	{"ssd", take_size, AT(ssd), "SIZE"},
	{"ssd_evict", take_yes, AT(options.cache.ssd_evict), NULL},
	{"segment", take_segment, AT(options.cache.segment), "SIZE"},
	{"hugepages", take_choice, AT(options.cache.hugepages), "auto|on|off"},
	{"writeback", take_choice, AT(options.cache.writeback),
	 "all|reuse|none"},
	{"evict", take_policy, AT(options.cache.evict), "lhd|flru|lru"},
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

static int parse_word(struct kv_parsing *p, const char *text, char **ret_why)
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
		       equals ? equals + 1 : NULL, &why) == 0) {
		p->given |= 1ull << (word - known);
		return 0;
	}
	return kv_why(ret_why, -EINVAL, "%s: %s%s", text,
		      why == word->values ? "not one of " : "", why);
}

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

/* Cut the next word off *@rest; what is written \, is a comma in it. */
static char *next_word(char **rest)
{
	char *word = *rest, *from = word, *to = word;

	if (!word)
		return NULL;
	for (; *from && *from != ','; *to++ = *from++)
		from += from[0] == '\\' && from[1] == ',';
	*rest = *from ? from + 1 : NULL;
	*to = '\0';
	return word;
}

int kv_words_parse(struct kv_parsing *p, const char *text, char **ret_why)
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
	while ((word = next_word(&rest))) {
		if (!*word)
			continue;
		r = parse_word(p, word, ret_why);
		if (r < 0)
			return r;
	}
	return 0;
}

void kv_words_print_allow(FILE *f, const struct kv_rules *rules)
{
	fputs("allow=", f);
	for (size_t i = 0; i < rules->n_allow; i++)
		fprintf(f, "%s%s%u", i ? ":" : "",
			rules->allow[i].is_group ? "@" : "",
			rules->allow[i].id);
	fputs("\n", f);
}

/* Words without a line in .kvfs/config change nothing of a mount that is there. */
static void print_line(FILE *f, const struct kv_parsing *p,
		       const struct word *word)
{
	const struct kv_options *o = &p->options;
	const struct kv_remote_config *remote = &o->cache.remote;
	const void *at = (const char *)p + word->where;
	const char *choice = word->values;

	if (at == &p->dram || at == &p->ssd) {
		fprintf(f, "%s=%llu\n", word->name,
			(unsigned long long)(at == &p->dram ? o->cache.dram
							    : o->cache.ssd));
	} else if (word->take == take_segment || word->take == take_bytes) {
		fprintf(f, "%s=%llu\n", word->name,
			(unsigned long long)*(const uint64_t *)at);
	} else if (word->take == take_choice) {
		for (unsigned i = *(const unsigned *)at; i > 0; i--)
			choice += strcspn(choice, "|") + 1;
		fprintf(f, "%s=%.*s\n", word->name, (int)strcspn(choice, "|"),
			choice);
	} else if (word->take == take_policy) {
		fprintf(f, "%s=%s\n", word->name, *(const char *const *)at);
	} else if (word->take == take_path) {
		fprintf(f, "control=%s\n", o->control);
	} else if (word->take == take_id || word->take == take_threshold) {
		fprintf(f, "%s=%u\n", word->name, *(const uint32_t *)at);
	} else if (word->take == take_mode) {
		fprintf(f, "%s=%03o\n", word->name, *(const uint32_t *)at);
	} else if (word->take == take_root_mode) {
		fprintf(f, "%s=%04o\n", word->name, *(const uint32_t *)at);
	} else if (word->take == take_allow) {
		kv_words_print_allow(f, &o->rules);
	} else if (word->take == take_remote) {
		for (size_t i = 0; i < remote->n; i++)
			fprintf(f, "remote=%s\n", remote->urls[i]);
	} else if (word->take == take_tenant) {
		for (size_t i = 0; i < remote->n_tenants; i++)
			fprintf(f, "remote_tenant=%u:%s\n",
				remote->tenants[i].uid,
				remote->tenants[i].name);
	} else if (at == &o->allow_other) {
		fputs("allow_other=1\n", f);
	} else if (at == &remote->optional) {
		fputs("remote_optional\n", f);
	}
}

char *kv_words_lines(const struct kv_parsing *p)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++)
		if (p->given & 1ull << i)
			print_line(f, p, &known[i]);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

void kv_words_print(FILE *f)
{
	char text[128];
	int n, column = 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(known); i++) {
		const struct word *word = &known[i];

		n = snprintf(text, sizeof(text), " %s%s%s", word->name,
			     word->values ? "=" : "",
			     word->values ? word->values : "");
		if (column == 0 || column + n > 78)
			column = fprintf(f, "%s ", column ? "\n" : "") - 1;
		column += fprintf(f, "%s", text);
	}
}
