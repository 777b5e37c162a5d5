/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.c - the site of a backend on a web server: its URL and credentials.
 *
 * OWNS      the texts of a site; secrets are wiped before they are freed.
 *
 * LOCKING   none: a site is fixed after new.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cache/remote/site.h"
#include "common/bytes.h"

#define CREDENTIALS_MAX 65536

/* The parameters of a URL. */
struct query {
	char *ca, *credentials, *endpoint, *region;
};

static const struct parameter {
	const char *name;
	size_t at;
	bool only_s3;
} parameters[] = {
	{"ca", offsetof(struct query, ca), false},
	{"credentials", offsetof(struct query, credentials), false},
	{"endpoint", offsetof(struct query, endpoint), true},
	{"region", offsetof(struct query, region), true},
};

/* The lines of a credentials file. */
static const struct secret {
	const char *name;
	size_t at;
	bool s3;
} secrets[] = {
	{"user", offsetof(struct kv_site, user), false},
	{"password", offsetof(struct kv_site, secret), false},
	{"aws_access_key_id", offsetof(struct kv_site, user), true},
	{"aws_secret_access_key", offsetof(struct kv_site, secret), true},
	{"aws_session_token", offsetof(struct kv_site, token), true},
};

static char **field(void *object, size_t at)
{
	return (char **)((char *)object + at);
}

static void wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

void kv_site_free(struct kv_site *site)
{
	if (!site)
		return;
	free(site->base);
	free(site->ca);
	free(site->region);
	wipe(site->user);
	wipe(site->secret);
	wipe(site->token);
	free(site);
}

static void site_freep(struct kv_site **site)
{
	kv_site_free(*site);
}

static void query_fini(struct query *query)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(parameters); i++)
		free(*field(query, parameters[i].at));
}

/* ---- characters ---- */

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c >= '0' && c <= '9') || (c && strchr("-._~", c));
}

int kv_site_encode(char *url, size_t room, const char *text)
{
	size_t n = strlen(url);

	for (; *text; text++) {
		const bool plain = is_plain(*text) || *text == '/';

		if (n + (plain ? 1 : 3) >= room)
			return -ENAMETOOLONG;
		n += (size_t)sprintf(url + n, plain ? "%c" : "%%%02X",
				     (unsigned char)*text);
	}
	return 0;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decode %XX in place.  -EINVAL: a percent sign without two digits, or a control
 * character. */
static int decode(char *text)
{
	char *to = text;

	for (; *text; text++) {
		int high = *text == '%' ? digit(text[1]) : 0;
		int low = *text == '%' && high >= 0 ? digit(text[2]) : 0;

		if (high < 0 || low < 0)
			return -EINVAL;
		if (*text == '%') {
			*to = (char)(high << 4 | low);
			text += 2;
		} else {
			*to = *text;
		}
		if ((unsigned char)*to++ < ' ')
			return -EINVAL;
	}
	*to = '\0';
	return 0;
}

/* ---- credentials ---- */

static char *trim(char *text)
{
	char *end = text + strlen(text);

	while (*text == ' ' || *text == '\t')
		text++;
	while (end > text && strchr(" \t\r", end[-1]))
		end--;
	*end = '\0';
	return text;
}

static int take_secret(struct kv_site *site, char *line, bool s3)
{
	char *value = strchr(line, '=');

	if (!value)
		return -EINVAL;
	*value++ = '\0';
	line = trim(line);
	value = trim(value);
	for (const char *c = value; *c; c++)
		if (*c <= ' ' || *c > '~')
			return -EINVAL;
	if (!*value || strlen(value) > KV_SITE_TOKEN_MAX)
		return -EINVAL;
	for (size_t i = 0; i < KV_ARRAY_LEN(secrets); i++) {
		char **at = field(site, secrets[i].at);

		if (s3 != secrets[i].s3 || strcmp(line, secrets[i].name) != 0)
			continue;
		if (*at)
			return -EEXIST;
		*at = strdup(value);
		return *at ? 0 : -ENOMEM;
	}
	return 0; /* other lines are ignored */
}

int kv_site_read_credentials(struct kv_site *site, char *text, bool s3,
			     char **ret_why)
{
	const size_t names = s3 ? 2 : 0;
	bool ours = true;
	unsigned n = 0;
	char *line;
	int r;

	while ((line = strsep(&text, "\n"))) {
		n++;
		line = trim(line);
		if (*line == '[')
			ours = strcmp(line, "[default]") == 0;
		if (!ours || strchr("[#;", *line))
			continue;
		r = take_secret(site, line, s3);
		if (r == -EEXIST)
			return kv_why(ret_why, -EINVAL,
				      "line %u says again what was said", n);
		if (r < 0)
			return kv_why(ret_why, r, "line %u is no NAME = VALUE",
				      n);
	}
	if (site->user && site->secret)
		return 0;
	return kv_why(ret_why, -EINVAL, "there is no %s",
		      secrets[names + (site->user ? 1 : 0)].name);
}

/* Read a file that only its owner, the daemon's user or root, may read: else -EACCES. */
static int read_secret_file(const char *path, char *text, size_t room,
			    char **ret_why)
{
	_cleanup_(kv_closep) int fd =
		open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return kv_why(ret_why, -errno, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return kv_why(ret_why, -EINVAL, "not a file");
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return kv_why(ret_why, -EACCES,
			      "it is user %u's, and must be %u's or root's",
			      st.st_uid, geteuid());
	if (st.st_mode & 077)
		return kv_why(ret_why, -EACCES,
			      "its mode is %04o, and must be 0600",
			      st.st_mode & 07777);
	n = read(fd, text, room);
	if (n < 0)
		return kv_why(ret_why, -errno, "%s", strerror(errno));
	if ((size_t)n == room || memchr(text, '\0', (size_t)n))
		return kv_why(ret_why, -EINVAL, "not a credentials file");
	text[n] = '\0';
	return 0;
}

static int read_credentials(struct kv_site *site, const char *path, bool s3,
			    char **ret_why)
{
	_cleanup_(kv_freep) char *why = NULL;
	char text[CREDENTIALS_MAX];
	int r = read_secret_file(path, text, sizeof(text), &why);

	if (r == 0)
		r = kv_site_read_credentials(site, text, s3, &why);
	explicit_bzero(text, sizeof(text));
	if (r < 0)
		return kv_why(ret_why, r, "credentials=%s: %s", path,
			      why ? why : strerror(-r));
	return 0;
}

/* ---- URLs ---- */

/* Cut @text at its question mark, and parse the rest. */
static int parse_query(struct query *query, char *text, bool s3, char **ret_why)
{
	char *rest = strchr(text, '?'), *name, *value, **at;
	size_t i;

	if (rest)
		*rest++ = '\0';
	while ((name = strsep(&rest, "&"))) {
		value = strchr(name, '=');
		if (value)
			*value++ = '\0';
		for (i = 0; i < KV_ARRAY_LEN(parameters); i++)
			if (strcmp(name, parameters[i].name) == 0 &&
			    (s3 || !parameters[i].only_s3))
				break;
		if (i == KV_ARRAY_LEN(parameters))
			return kv_why(ret_why, -EINVAL,
				      "unknown parameter \"%s\"", name);
		if (!value || !*value || decode(value) < 0)
			return kv_why(ret_why, -EINVAL,
				      "%s= has no value that is one", name);
		at = field(query, parameters[i].at);
		if (*at)
			return kv_why(ret_why, -EINVAL, "%s= is given twice",
				      name);
		*at = strdup(value);
		if (!*at)
			return -ENOMEM;
	}
	return 0;
}

/* Return the length of the host name, or [ADDRESS], at the start of @server; 0: none. */
static size_t host_length(const char *server)
{
	size_t n = 0;

	if (*server == '[') {
		n = strspn(server + 1, "0123456789abcdefABCDEF:.");
		return n > 0 && server[n + 1] == ']' ? n + 2 : 0;
	}
	if (strchr("-._~", *server))
		return 0;
	while (is_plain(server[n]))
		n++;
	return n;
}

/* Check HOST or HOST:PORT. */
static int check_server(const char *server, char **ret_why)
{
	const size_t n = host_length(server);
	const char *port;
	unsigned long value;
	size_t digits;

	if (strchr(server, '@'))
		return kv_why(ret_why, -EINVAL,
			      "credentials do not belong into a URL: "
			      "credentials=FILE");
	if (n == 0 || (server[n] && server[n] != ':'))
		return kv_why(ret_why, -EINVAL, "\"%s\" is no server", server);
	if (!server[n])
		return 0;
	port = server + n + 1;
	digits = strspn(port, "0123456789");
	value = strtoul(port, NULL, 10);
	if (digits == 0 || digits > 5 || port[digits] || value == 0 ||
	    value > 65535)
		return kv_why(ret_why, -EINVAL, "\"%s\" is no port", port);
	return 0;
}

/* Check a path, and cut slashes off its end. */
static int check_path(char *path, char **ret_why)
{
	size_t n = strlen(path);

	while (n > 0 && path[n - 1] == '/')
		path[--n] = '\0';
	for (const char *at = path; *at;) {
		const char *end = strchrnul(at, '/');

		if (end == at || *at == '.')
			return kv_why(ret_why, -EINVAL,
				      "the path \"%s\" has a part that is "
				      "empty or begins with a dot",
				      path);
		for (; at < end; at++)
			if (!is_plain(*at))
				return kv_why(ret_why, -EINVAL,
					      "'%c' does not belong into a "
					      "path",
					      *at);
		at += *at == '/';
	}
	return 0;
}

/* Return whether @server is this machine. */
static bool is_local(const char *server)
{
	const size_t n = strspn(server, "0123456789.");

	if (strncmp(server, "127.", 4) == 0)
		return !server[n] || server[n] == ':';
	return strncmp(server, "[::1]", 5) == 0 ||
	       (strncmp(server, "localhost", 9) == 0 &&
		(!server[9] || server[9] == ':'));
}

/* Set base and root: SCHEME://SERVER/[BUCKET/][PATH/]. */
static int set_base(struct kv_site *site, const char *server,
		    const char *bucket, const char *path, char **ret_why)
{
	const char *slash = *bucket ? "/" : "";
	int n;

	n = asprintf(&site->base, "%s/%s%s%s%s", server, bucket, slash, path,
		     *path ? "/" : "");
	if (n < 0) {
		site->base = NULL;
		return -ENOMEM;
	}
	if (n > KV_SITE_BASE_MAX)
		return kv_why(ret_why, -EINVAL, "it is too long");
	site->root = strlen(server) + 1 + strlen(bucket) + strlen(slash);
	return 0;
}

/* Parse //SERVER[/PREFIX]. */
static int parse_webdav(struct kv_site *site, const char *scheme, char *url,
			const struct query *query, char **ret_why)
{
	_cleanup_(kv_freep) char *server = NULL;
	char *path = strchrnul(url + 2, '/');
	int r;

	if (*path)
		*path++ = '\0';
	r = check_server(url + 2, ret_why);
	if (r == 0)
		r = check_path(path, ret_why);
	if (r < 0)
		return r;
	if (query->credentials && strcmp(scheme, "https") != 0 &&
	    !is_local(url + 2))
		return kv_why(ret_why, -EINVAL,
			      "a password would cross the net for all to "
			      "read: https, or no credentials=");
	if (asprintf(&server, "%s:%s", scheme, url) < 0)
		return -ENOMEM;
	return set_base(site, server, "", path, ret_why);
}

static int check_endpoint(char *endpoint, char **ret_why)
{
	const char *server;
	size_t n = strlen(endpoint);

	if (n > 0 && endpoint[n - 1] == '/')
		endpoint[n - 1] = '\0';
	if (strncmp(endpoint, "http://", 7) == 0)
		server = endpoint + 7;
	else if (strncmp(endpoint, "https://", 8) == 0)
		server = endpoint + 8;
	else
		return kv_why(ret_why, -EINVAL,
			      "endpoint=%s is neither http:// nor https://",
			      endpoint);
	if (strchr(server, '/'))
		return kv_why(ret_why, -EINVAL,
			      "endpoint= has a path behind its server");
	return check_server(server, ret_why);
}

/* Parse //BUCKET[/PREFIX]. */
static int parse_s3(struct kv_site *site, char *url, struct query *query,
		    char **ret_why)
{
	static const char word[] = "abcdefghijklmnopqrstuvwxyz0123456789-.";
	char *bucket = url + 2, *path = strchrnul(bucket, '/');
	size_t n;
	int r;

	if (*path)
		*path++ = '\0';
	n = strspn(bucket, word);
	if (!*bucket)
		return kv_why(ret_why, -EINVAL, "the bucket is missing");
	if (bucket[n] || n < 3 || n > 63 || *bucket == '.')
		return kv_why(ret_why, -EINVAL, "\"%s\" is no bucket", bucket);
	r = check_path(path, ret_why);
	if (r == 0 && !query->endpoint)
		r = kv_why(ret_why, -EINVAL, "endpoint=URL is missing");
	if (r == 0)
		r = check_endpoint(query->endpoint, ret_why);
	if (r < 0)
		return r;
	site->region =
		query->region ? kv_steal(query->region) : strdup("us-east-1");
	if (!site->region)
		return -ENOMEM;
	if (site->region[strspn(site->region, word)] ||
	    strchr(site->region, '.'))
		return kv_why(ret_why, -EINVAL, "\"%s\" is no region",
			      site->region);
	return set_base(site, query->endpoint, bucket, path, ret_why);
}

static int parse(struct kv_site *site, const char *scheme, char *url,
		 char **ret_why)
{
	_cleanup_(query_fini) struct query query = {NULL};
	const bool s3 = strcmp(scheme, "s3") == 0;
	int r;

	if (strncmp(url, "//", 2) != 0)
		return kv_why(ret_why, -EINVAL, "%s: is followed by //",
			      scheme);
	r = parse_query(&query, url, s3, ret_why);
	if (r < 0)
		return r;
	r = s3 ? parse_s3(site, url, &query, ret_why)
	       : parse_webdav(site, scheme, url, &query, ret_why);
	if (r < 0)
		return r;
	if (query.ca && access(query.ca, R_OK) < 0)
		return kv_why(ret_why, -errno, "ca=%s: %s", query.ca,
			      strerror(errno));
	site->ca = kv_steal(query.ca);
	return query.credentials
		       ? read_credentials(site, query.credentials, s3, ret_why)
		       : 0;
}

int kv_site_new(const char *scheme, const char *url, struct kv_site **ret_site,
		char **ret_why)
{
	_cleanup_(site_freep) struct kv_site *site = calloc(1, sizeof(*site));
	_cleanup_(kv_freep) char *text = strdup(url);
	int r = site && text ? 0 : -ENOMEM;

	*ret_why = NULL;
	if (r == 0)
		r = parse(site, scheme, text, ret_why);
	if (r == 0)
		*ret_site = kv_steal(site);
	return r;
}
