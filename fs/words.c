/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.c - the comma-separated words of -o.
 *
 * OWNS      the texts in struct kv_words.
 *
 * INVARIANTS
 *   (1) A word that takes a value is refused without one, and the reverse.
 *
 * LOCKING   none: runs before any thread.
 */
#include <stdio.h>

#include "fs/words.h"

struct word {
	const char *name;
	bool valued;
	/* 0, or -errno with the reason in *@ret_why (a constant). */
	int (*take)(struct kv_words *words, struct kv_options *options,
		    const char *value, const char **ret_why);
};

#define NOT_A_SIZE "not a size (digits, then K, M, G, T or %)"
#define NOT_BYTES "not a size (digits, then K, M, G or T)"

static int bytes_of(const char *value, uint64_t *ret_bytes,
		    const char **ret_why)
{
	int r;

	r = kv_bytes_parse(value, ret_bytes);
	if (r < 0)
		*ret_why = r == -ERANGE ? "too large" : NOT_BYTES;
	return r;
}

/* The quantity is kept with its text: limits are checked once all is known. */
static int keep(const char *value, struct kv_quantity *ret_quantity,
		char **text, const char **ret_why)
{
	int r;

	r = kv_quantity_parse(value, ret_quantity);
	if (r < 0) {
		*ret_why = r == -ERANGE ? "too large" : NOT_A_SIZE;
		return r;
	}
	free(*text);
	*text = strdup(value);
	*ret_why = "out of memory";
	return *text == NULL ? -ENOMEM : 0;
}

static int take_dram(struct kv_words *words, struct kv_options *options,
		     const char *value, const char **ret_why)
{
	(void)options;
	words->dram_given = true;
	return keep(value, &words->dram, &words->dram_text, ret_why);
}

static int take_ssd(struct kv_words *words, struct kv_options *options,
		    const char *value, const char **ret_why)
{
	(void)options;
	words->ssd_given = true;
	return keep(value, &words->ssd, &words->ssd_text, ret_why);
}

static int take_segment(struct kv_words *words, struct kv_options *options,
			const char *value, const char **ret_why)
{
	int r;

	(void)words;
	r = bytes_of(value, &options->segment, ret_why);
	if (r < 0)
		return r;
	*ret_why = "less than 8M";
	if (options->segment < KV_SEGMENT_MIN)
		return -EINVAL;
	options->segment -= options->segment % KV_SEGMENT_UNIT;
	return 0;
}

static int take_scrub(struct kv_words *words, struct kv_options *options,
		      const char *value, const char **ret_why)
{
	(void)words;
	return bytes_of(value, &options->scrub, ret_why);
}

static int take_ssd_write(struct kv_words *words, struct kv_options *options,
			  const char *value, const char **ret_why)
{
	(void)words;
	return bytes_of(value, &options->ssd_write, ret_why);
}

/* The place of @value among @choices, or -EINVAL. */
static int choose(const char *value, const char *const *choices, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(value, choices[i]) == 0)
			return (int)i;
	return -EINVAL;
}

static int take_hugepages(struct kv_words *words, struct kv_options *options,
			  const char *value, const char **ret_why)
{
	static const char *const choices[] = {"auto", "on", "off"};
	int i = choose(value, choices, KV_ARRAY_LEN(choices));

	(void)words;
	*ret_why = "not one of auto, on, off";
	if (i < 0)
		return i;
	options->hugepages = (enum kv_hugepages)i;
	return 0;
}

static int take_writeback(struct kv_words *words, struct kv_options *options,
			  const char *value, const char **ret_why)
{
	static const char *const choices[] = {"all", "reuse", "none"};
	int i = choose(value, choices, KV_ARRAY_LEN(choices));

	(void)words;
	*ret_why = "not one of all, reuse, none";
	if (i < 0)
		return i;
	options->writeback = (enum kv_writeback)i;
	return 0;
}

static int take_evict(struct kv_words *words, struct kv_options *options,
		      const char *value, const char **ret_why)
{
	static const char *const choices[] = {"lhd", "flru", "lru"};
	int i = choose(value, choices, KV_ARRAY_LEN(choices));

	(void)words;
	*ret_why = "not one of lhd, flru, lru";
	if (i < 0)
		return i;
	options->evict = choices[i];
	return 0;
}

static int take_arena(struct kv_words *words, struct kv_options *options,
		      const char *value, const char **ret_why)
{
	static const char *const choices[] = {"sealed", "rw"};
	int i = choose(value, choices, KV_ARRAY_LEN(choices));

	(void)words;
	*ret_why = "not one of sealed, rw";
	if (i < 0)
		return i;
	options->rw_arena = i == 1;
	return 0;
}

static int take_remote(struct kv_words *words, struct kv_options *options,
		       const char *value, const char **ret_why)
{
	(void)words;
	(void)options;
	(void)value;
	*ret_why = "this version has no remote tier";
	return -EINVAL;
}

static int take_control(struct kv_words *words, struct kv_options *options,
			const char *value, const char **ret_why)
{
	(void)options;
	free(words->control);
	words->control = strdup(value);
	*ret_why = "out of memory";
	return words->control == NULL ? -ENOMEM : 0;
}

static int id_of(const char *value, uint32_t *ret_id, const char **ret_why)
{
	uint64_t n;
	int r;

	*ret_why = "not a number from 0 to 4294967294";
	r = kv_number_parse(value, 10, UINT32_MAX - 1, &n);
	if (r < 0)
		return r;
	*ret_id = (uint32_t)n;
	return 0;
}

static int take_uid(struct kv_words *words, struct kv_options *options,
		    const char *value, const char **ret_why)
{
	(void)words;
	options->uid_given = true;
	return id_of(value, &options->uid, ret_why);
}

static int take_gid(struct kv_words *words, struct kv_options *options,
		    const char *value, const char **ret_why)
{
	(void)words;
	options->gid_given = true;
	return id_of(value, &options->gid, ret_why);
}

static int take_umask(struct kv_words *words, struct kv_options *options,
		      const char *value, const char **ret_why)
{
	uint64_t n;
	int r;

	(void)words;
	*ret_why = "not an octal number up to 777";
	r = kv_number_parse(value, 8, 0777, &n);
	if (r < 0)
		return r;
	options->umask = (uint32_t)n;
	return 0;
}

static int take_ro(struct kv_words *words, struct kv_options *options,
		   const char *value, const char **ret_why)
{
	(void)words;
	(void)value;
	(void)ret_why;
	options->read_only = true;
	return 0;
}

static int take_rw(struct kv_words *words, struct kv_options *options,
		   const char *value, const char **ret_why)
{
	(void)words;
	(void)value;
	(void)ret_why;
	options->read_only = false;
	return 0;
}

static int take_allow_other(struct kv_words *words, struct kv_options *options,
			    const char *value, const char **ret_why)
{
	(void)words;
	(void)value;
	(void)ret_why;
	options->allow_other = true;
	return 0;
}

static int take_noexec(struct kv_words *words, struct kv_options *options,
		       const char *value, const char **ret_why)
{
	(void)words;
	(void)value;
	(void)ret_why;
	options->noexec = true;
	return 0;
}

static const struct word known[] = {
	{"dram", true, take_dram},
	{"ssd", true, take_ssd},
	{"segment", true, take_segment},
	{"hugepages", true, take_hugepages},
	{"writeback", true, take_writeback},
	{"remote", true, take_remote},
	{"evict", true, take_evict},
	{"scrub", true, take_scrub},
	{"ssd_write", true, take_ssd_write},
	{"arena", true, take_arena},
	{"control", true, take_control},
	{"uid", true, take_uid},
	{"gid", true, take_gid},
	{"umask", true, take_umask},
	{"allow_other", false, take_allow_other},
	{"ro", false, take_ro},
	{"rw", false, take_rw},
	{"noexec", false, take_noexec},
};

/* What mount(8) and fstab say to every filesystem.  A mount of kvfs has no
 * device files, no set-uid programs and no access times in the kernel. */
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
		    memcmp(known[i].name, name, len) == 0)
			return &known[i];
	return NULL;
}

static int complain(const char *word, const char *why, char **ret_why)
{
	if (asprintf(ret_why, "%s: %s", word, why) < 0)
		*ret_why = NULL;
	return -EINVAL;
}

static int parse_one(struct kv_words *words, struct kv_options *options,
		     const char *text, char **ret_why)
{
	const char *equals = strchr(text, '=');
	size_t len = equals != NULL ? (size_t)(equals - text) : strlen(text);
	const struct word *word = find_word(text, len);
	const char *why = NULL;

	if (word == NULL) {
		if (is_standard(text) || words->sloppy)
			return 0;
		return complain(text, "unknown option", ret_why);
	}
	if (word->valued && (equals == NULL || equals[1] == '\0'))
		return complain(text, "needs a value", ret_why);
	if (!word->valued && equals != NULL)
		return complain(text, "takes no value", ret_why);
	if (word->take(words, options, word->valued ? equals + 1 : NULL, &why) <
	    0)
		return complain(text, why, ret_why);
	return 0;
}

int kv_words_parse(struct kv_words *words, struct kv_options *options,
		   const char *text, char **ret_why)
{
	_cleanup_(kv_freep) char *copy = strdup(text);
	char *rest = copy, *word;
	int r;

	if (copy == NULL)
		return -ENOMEM;
	while ((word = strsep(&rest, ",")) != NULL) {
		if (word[0] == '\0')
			continue;
		r = parse_one(words, options, word, ret_why);
		if (r < 0)
			return r;
	}
	return 0;
}

void kv_words_fini(struct kv_words *words)
{
	free(words->dram_text);
	free(words->ssd_text);
	free(words->control);
	*words = (struct kv_words){0};
}
