/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.c - which helpers a URL means, and as whom they run.
 *
 * helper:PATH?NAME=VALUE&... is any program that speaks the protocol;
 * mooncake://... is the one that comes with kvfs.
 *
 * OWNS      nothing: what is parsed goes to the helper's backend.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "cache/remote/helpers.h"
#include "common/bytes.h"

/* Users that nobody has: beyond those of people, of services and of containers. */
#define FIRST_UID 2000000000u
#define LAST_UID 2099999999u
#define LANDING (64ull << 20)
#define PATIENCE_S 60u
#define HELLO_S 30u
#define HELPERS 8u
#define HELPERS_MAX 64u
#define IDLE_S 300u
#define SECOND UINT64_C(1000000000)
#define PYTHON "/usr/bin/python3"

struct words {
	char *text;	   /* a copy of the URL, cut */
	char *path, *rest; /* before and after its "?" */
	const char *program, *python;
	uint64_t first, last; /* uids */
	uint64_t landing, patience, helpers, idle;
};

static int refuse(char **ret_why, const char *why)
{
	return kv_why(ret_why, -EINVAL, "%s", why);
}

/* Digits, and with @units one of K, M, G. */
static int read_number(const char *text, bool units, uint64_t max,
		       uint64_t *ret_number)
{
	uint64_t n = 0, unit = 1;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	for (; *text >= '0' && *text <= '9'; text++) {
		n = n * 10 + (uint64_t)(*text - '0');
		if (n > max)
			return -ERANGE;
	}
	if (units && *text && strchr("KMG", *text))
		unit = 1ull << (*text == 'K'   ? 10
				: *text == 'M' ? 20
					       : 30),
		text++;
	if (*text || n > max / unit)
		return -EINVAL;
	*ret_number = n * unit;
	return 0;
}

/* N, or FIRST-LAST. */
static int read_uids(struct words *words, const char *value)
{
	char first[16];
	const size_t n = strcspn(value, "-");
	int r;

	if (n >= sizeof(first))
		return -EINVAL;
	snprintf(first, sizeof(first), "%.*s", (int)n, value);
	r = read_number(first, false, UINT32_MAX - 1, &words->first);
	words->last = words->first;
	if (r == 0 && value[n])
		r = read_number(value + n + 1, false, UINT32_MAX - 1,
				&words->last);
	return r == 0 && words->last < words->first ? -EINVAL : r;
}

/* Those that are the daemon's; what it does not know is the helper's to judge. */
static int read_option(struct words *words, const char *name, const char *value)
{
	if (strcmp(name, "uid") == 0)
		return read_uids(words, value);
	if (strcmp(name, "landing") == 0)
		return read_number(value, true, 1ull << 40, &words->landing);
	if (strcmp(name, "patience") == 0)
		return read_number(value, false, 86400, &words->patience);
	if (strcmp(name, "idle") == 0)
		return read_number(value, false, 86400, &words->idle);
	if (strcmp(name, "helpers") == 0)
		return read_number(value, false, HELPERS_MAX, &words->helpers);
	if (strcmp(name, "program") == 0)
		words->program = value;
	if (strcmp(name, "python") == 0)
		words->python = value;
	return 0;
}

static int read_options(struct words *words, char **ret_why)
{
	char *save = NULL, *word, *value;

	for (word = strtok_r(words->rest, "&", &save); word;
	     word = strtok_r(NULL, "&", &save)) {
		value = strchr(word, '=');
		if (!value)
			return refuse(ret_why, "after ? stands NAME=VALUE");
		*value++ = '\0';
		if (read_option(words, word, value) < 0)
			return refuse(ret_why,
				      "a number in it is out of range");
	}
	if (words->landing < KV_PAGE || words->patience == 0 ||
	    words->helpers == 0)
		return refuse(ret_why, "a number in it is out of range");
	return 0;
}

static int read_words(struct words *words, const char *url, char **ret_why)
{
	*words = (struct words){.first = FIRST_UID,
				.last = LAST_UID,
				.landing = LANDING,
				.patience = PATIENCE_S,
				.helpers = HELPERS,
				.idle = IDLE_S};
	if (strlen(url) >= KV_HELPER_TEXT)
		return refuse(ret_why, strerror(ENAMETOOLONG));
	words->text = strdup(url);
	if (!words->text)
		return -ENOMEM;
	words->path = words->text;
	words->rest = strchr(words->text, '?');
	if (!words->rest)
		return 0;
	*words->rest++ = '\0';
	return read_options(words, ret_why);
}

/* Beside the daemon, where it is installed, or in the tree it was built in. */
static int find_program(const char *name, char ret_path[4096])
{
	static const char *const places[] = {"", "../libexec/kvfs/",
					     "../connectors/remote/"};
	char own[3000], *slash;
	ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);

	if (n < 0)
		return -errno;
	own[n] = '\0';
	slash = strrchr(own, '/');
	if (!slash)
		return -ENOENT;
	slash[1] = '\0';
	for (size_t i = 0; i < KV_ARRAY_LEN(places); i++) {
		snprintf(ret_path, 4096, "%s%s%s", own, places[i], name);
		if (access(ret_path, F_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

/* Whether users of these numbers are any in our user namespace. */
static bool are_mapped(uint64_t first, uint64_t last)
{
	FILE *file = fopen("/proc/self/uid_map", "re");
	unsigned long long inside, outside, n;
	bool mapped = !file;

	while (file &&
	       fscanf(file, "%llu %llu %llu", &inside, &outside, &n) == 3)
		mapped |= first >= inside && last < inside + n;
	if (file)
		fclose(file);
	return mapped;
}

static int check_words(const struct words *words, char **ret_why)
{
	const uint64_t uids = words->last - words->first + 1;

	if (words->program[0] != '/')
		return refuse(ret_why, "a program's path begins with /");
	if (words->python && words->python[0] != '/')
		return refuse(ret_why, "an interpreter's path begins with /");
	if (uids != 1 && uids < KV_HELPERS_UIDS(words->helpers))
		return refuse(ret_why,
			      "uid= has too few users for so many helpers");
	if (geteuid() == 0 && !are_mapped(words->first, words->last))
		return refuse(ret_why,
			      "its users, 2000000000 to 2099999999 without "
			      "uid=, are none in this user namespace");
	return 0;
}

static int begin(const struct words *words, const char *url, void **ret_backend,
		 char **ret_why)
{
	struct kv_helpers_config config = {
		.helper = {.url = url,
			   .landing = kv_round_up(words->landing, KV_PAGE),
			   .hello_ns = HELLO_S * SECOND,
			   .patience_ns = words->patience * SECOND,
			   .start = kv_launch},
		.first_uid = (uint32_t)words->first,
		.uids = (uint32_t)(words->last - words->first + 1),
		.max = (unsigned)words->helpers,
		.idle_ns = words->idle * SECOND,
	};
	int r = check_words(words, ret_why);
	size_t n = 0;

	if (r < 0)
		return r;
	if (words->python)
		config.helper.launch.argv[n++] = words->python;
	config.helper.launch.argv[n] = words->program;
	return kv_helpers_open(&config, ret_backend, ret_why);
}

static int open_any(const char *url, void **ret_backend, char **ret_why)
{
	struct words words;
	int r;

	*ret_why = NULL;
	r = read_words(&words, url, ret_why);
	if (r == 0) {
		words.program = words.path;
		r = begin(&words, url, ret_backend, ret_why);
	}
	free(words.text);
	return r;
}

/* //HOST:PORT */
static bool is_master(const char *path)
{
	const char *colon = strrchr(path, ':');
	uint64_t port = 0;

	return strncmp(path, "//", 2) == 0 && colon && colon > path + 2 &&
	       read_number(colon + 1, false, 65535, &port) == 0 && port > 0;
}

static int open_mooncake(const char *url, void **ret_backend, char **ret_why)
{
	char program[4096] = "";
	struct words words;
	int r;

	*ret_why = NULL;
	r = read_words(&words, url, ret_why);
	if (r == 0 && !is_master(words.path))
		r = refuse(ret_why, "its master is //HOST:PORT");
	if (r == 0 && !words.program) {
		if (find_program("kvfs-remote-mooncake", program) < 0)
			r = refuse(ret_why,
				   "kvfs-remote-mooncake is not where kvfs "
				   "is, nor in ../libexec/kvfs");
		words.program = program;
	}
	if (r == 0) {
		if (!words.python)
			words.python = PYTHON;
		r = begin(&words, url, ret_backend, ret_why);
	}
	free(words.text);
	return r;
}

#define CALLS                                             \
	.apart = true, .submit = kv_helpers_submit,       \
	.cancel = kv_helpers_cancel, .fd = kv_helpers_fd, \
	.reap = kv_helpers_reap, .tell = kv_helpers_tell, \
	.close = kv_helpers_close

const struct kv_remote_driver kv_remote_helper = {
	.scheme = "helper", .open = open_any, CALLS};
const struct kv_remote_driver kv_remote_mooncake = {
	.scheme = "mooncake", .open = open_mooncake, CALLS};
