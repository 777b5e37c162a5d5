/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.c - which helper a URL means, and as whom it runs.
 *
 * helper:PATH?NAME=VALUE&... is any program that speaks the protocol;
 * mooncake://... is the one that comes with kvfs.
 *
 * OWNS      nothing: what is parsed goes to the helper's backend.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "cache/remote/helper.h"

#define NOBODY 65534u
#define LANDING (64ull << 20)
#define PATIENCE_S 60u
#define PYTHON "/usr/bin/python3"

struct words {
	char *text;	   /* a copy of the URL, cut */
	char *path, *rest; /* before and after its "?" */
	const char *program, *python;
	uint64_t uid, landing, patience;
};

static int refuse(char **ret_why, const char *url, const char *why)
{
	if (asprintf(ret_why, "%s: %s", url, why) < 0)
		*ret_why = NULL;
	return -EINVAL;
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

/* Those that are the daemon's; what it does not know is the helper's to judge. */
static int read_option(struct words *words, const char *name, const char *value)
{
	if (strcmp(name, "uid") == 0)
		return read_number(value, false, UINT32_MAX - 1, &words->uid);
	if (strcmp(name, "landing") == 0)
		return read_number(value, true, 1ull << 40, &words->landing);
	if (strcmp(name, "patience") == 0)
		return read_number(value, false, 86400, &words->patience);
	if (strcmp(name, "program") == 0)
		words->program = value;
	if (strcmp(name, "python") == 0)
		words->python = value;
	return 0;
}

static int read_options(struct words *words, const char *url, char **ret_why)
{
	char *save = NULL, *word, *value;

	for (word = strtok_r(words->rest, "&", &save); word;
	     word = strtok_r(NULL, "&", &save)) {
		value = strchr(word, '=');
		if (!value)
			return refuse(ret_why, url,
				      "after ? stands NAME=VALUE");
		*value++ = '\0';
		if (read_option(words, word, value) < 0)
			return refuse(ret_why, url,
				      "a number in it is out of range");
	}
	if (words->landing < KV_PAGE || words->patience == 0)
		return refuse(ret_why, url, "a number in it is out of range");
	return 0;
}

static int read_words(struct words *words, const char *url, char **ret_why)
{
	*words = (struct words){
		.uid = NOBODY, .landing = LANDING, .patience = PATIENCE_S};
	if (strlen(url) >= KV_HELPER_TEXT)
		return refuse(ret_why, "URL", strerror(ENAMETOOLONG));
	words->text = strdup(url);
	if (!words->text)
		return -ENOMEM;
	words->path = words->text;
	words->rest = strchr(words->text, '?');
	if (!words->rest)
		return 0;
	*words->rest++ = '\0';
	return read_options(words, url, ret_why);
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

static int begin(const struct words *words, const char *url, void **ret_backend,
		 char **ret_why)
{
	struct kv_helper_config config = {
		.launch.uid = (uid_t)words->uid,
		.url = url,
		.landing = kv_round_up(words->landing, KV_PAGE),
		.patience_ns = words->patience * 1000000000u,
		.start = kv_launch,
	};
	size_t n = 0;

	if (words->program[0] != '/')
		return refuse(ret_why, url, "a program's path begins with /");
	if (words->python && words->python[0] != '/')
		return refuse(ret_why, url,
			      "an interpreter's path begins with /");
	if (words->python)
		config.launch.argv[n++] = words->python;
	config.launch.argv[n] = words->program;
	for (size_t i = 0; i <= n; i++)
		if (access(config.launch.argv[i], F_OK) < 0) {
			refuse(ret_why, config.launch.argv[i], strerror(errno));
			return -ENOENT;
		}
	return kv_helper_open(&config, ret_backend, ret_why);
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

static int open_mooncake(const char *url, void **ret_backend, char **ret_why)
{
	char program[4096] = "";
	struct words words;
	int r;

	*ret_why = NULL;
	r = read_words(&words, url, ret_why);
	if (r == 0 && (strncmp(words.path, "//", 2) != 0 || !words.path[2]))
		r = refuse(ret_why, url, "mooncake://MASTER_HOST:PORT");
	if (r == 0 && !words.program) {
		if (find_program("kvfs-remote-mooncake", program) < 0)
			r = refuse(ret_why, "kvfs-remote-mooncake",
				   "not where kvfs is, nor in ../libexec/kvfs");
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

#define CALLS                                                   \
	.submit = kv_helper_submit, .cancel = kv_helper_cancel, \
	.fd = kv_helper_fd, .reap = kv_helper_reap, .close = kv_helper_close

const struct kv_remote_driver kv_remote_helper = {
	.scheme = "helper", .open = open_any, CALLS};
const struct kv_remote_driver kv_remote_mooncake = {
	.scheme = "mooncake", .open = open_mooncake, CALLS};
