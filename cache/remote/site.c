/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.c - the site of a backend on a web server: its URL, credentials and socket.
 *
 * OWNS      the texts of a site; secrets are wiped before they are freed.
 *
 * LOCKING   none: one thread uses a site.
 */
#include <ctype.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "cache/remote/http.h"
#include "common/bytes.h"

#define CREDENTIALS_MAX 65536
#define AGAIN_NS UINT64_C(1000000000)
#define WORD "abcdefghijklmnopqrstuvwxyz0123456789-"
#define PLAIN WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZ._~"

/* Trusted certificates on Debian, Red Hat, SUSE and Alpine, of which libcurl knows one. */
static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
				      "/etc/pki/tls/certs/ca-bundle.crt",
				      "/etc/ssl/ca-bundle.pem",
				      "/etc/ssl/cert.pem"};

static void free_secrets(char *secrets)
{
	if (secrets)
		explicit_bzero(secrets, CREDENTIALS_MAX);
	free(secrets);
}

void kv_site_free(struct kv_site *site)
{
	if (!site)
		return;
	free(site->base);
	free(site->socket);
	free(site->ca);
	free(site->region);
	free(site->endpoint);
	free(site->credentials);
	free_secrets(site->secrets);
	free(site);
}

static void site_freep(struct kv_site **site)
{
	kv_site_free(*site);
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

int kv_site_read_credentials(struct kv_site *site, char *text, bool s3,
			     char **ret_why)
{
	const struct {
		const char *name;
		const char **at;
	} secrets[] = {
		{s3 ? "aws_access_key_id" : "user", &site->user},
		{s3 ? "aws_secret_access_key" : "password", &site->secret},
		{s3 ? "aws_session_token" : "", &site->token},
	};
	bool ours = true;
	char *line, *value;

	for (unsigned n = 1; (line = strsep(&text, "\n")); n++) {
		line = trim(line);
		if (*line == '[')
			ours = strcmp(line, "[default]") == 0;
		if (!ours || strchr("[#;", *line))
			continue;
		value = line;
		line = trim(strsep(&value, "="));
		if (value)
			value = trim(value);
		for (const char *c = value; c && *c; c++)
			if (*c <= ' ' || *c > '~')
				value = NULL;
		if (!value || !*value || strlen(value) > KV_SITE_TOKEN_MAX)
			return kv_why(ret_why, -EINVAL,
				      "line %u is no NAME = VALUE", n);
		for (size_t i = 0; i < KV_ARRAY_LEN(secrets); i++) {
			if (strcmp(line, secrets[i].name) != 0)
				continue; /* other lines are ignored */
			if (*secrets[i].at)
				return kv_why(ret_why, -EINVAL,
					      "line %u repeats %s", n, line);
			*secrets[i].at = value;
		}
	}
	for (size_t i = 0; i < 2; i++)
		if (!*secrets[i].at)
			return kv_why(ret_why, -EINVAL, "there is no %s",
				      secrets[i].name);
	return 0;
}

static int read_credentials(struct kv_site *site, char **ret_why)
{
	_cleanup_(kv_freep) char *why = NULL;
	char *text = site->secrets = calloc(1, CREDENTIALS_MAX);
	int r = text ? kv_secret_read(site->credentials, text, CREDENTIALS_MAX,
				      &why)
		     : -ENOMEM;

	if (r >= 0 && strlen(text) != (size_t)r)
		r = -EINVAL;
	if (r >= 0)
		r = kv_site_read_credentials(site, text, site->s3, &why);
	return r < 0 ? kv_why(ret_why, r, "credentials=%s: %s",
			      site->credentials, why ? why : strerror(-r))
		     : 0;
}

bool kv_site_read_again(struct kv_site *site, unsigned version)
{
	struct kv_site other = {.credentials = site->credentials,
				.s3 = site->s3};
	_cleanup_(kv_freep) char *why = NULL;

	if (site->credentials && kv_now_ns() - site->read_ns > AGAIN_NS) {
		site->read_ns = kv_now_ns();
		if (read_credentials(&other, &why) == 0 &&
		    memcmp(site->secrets, other.secrets, CREDENTIALS_MAX) !=
			    0) {
			char *old = site->secrets;

			site->secrets = other.secrets;
			site->user = other.user;
			site->secret = other.secret;
			site->token = other.token;
			site->version++;
			other.secrets = old;
		}
		free_secrets(other.secrets);
	}
	return site->version != version;
}

/* ---- UNIX sockets ---- */

/* Check that only root and the daemon's user may replace the socket. */
static int check_folders(const char *socket, char *why, size_t room)
{
	_cleanup_(kv_freep) char *path = strdup(socket), *real = NULL;
	bool nearest = true;
	struct stat st;

	if (path) {
		*strrchr(path, '/') = '\0';
		real = realpath(*path ? path : "/", NULL);
	}
	for (; real; nearest = false) {
		const char *folder = *real ? real : "/";

		if (stat(folder, &st) < 0)
			break;
		/* Further up, a sticky folder (/tmp) protects its entries. */
		if ((st.st_uid != 0 && st.st_uid != geteuid()) ||
		    ((st.st_mode & 022) &&
		     (nearest || !(st.st_mode & S_ISVTX)))) {
			snprintf(why, room,
				 "%.80s: others may write to it (user %u, mode "
				 "%04o)",
				 folder, st.st_uid, st.st_mode & 07777);
			return -EPERM;
		}
		if (!*real)
			return 0;
		*strrchr(real, '/') = '\0';
	}
	snprintf(why, room, "%.80s: %s", socket, strerror(errno));
	return -errno;
}

int kv_site_check_peer(const struct kv_site *site, int fd, char *why,
		       size_t room)
{
	struct ucred peer = {.uid = (uid_t)-1};
	socklen_t n = sizeof(peer);
	int r = check_folders(site->socket, why, room);

	if (r == 0 && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 ||
		       (peer.uid != 0 && peer.uid != geteuid()))) {
		snprintf(why, room,
			 "%.80s: user %u listens there, not root or user %u",
			 site->socket, peer.uid, geteuid());
		r = -EPERM;
	}
	return r;
}

/* ---- URLs ---- */

/* Cut @text at its question mark, and parse the rest. */
static int parse_query(struct kv_site *site, char *text, char **ret_why)
{
	const struct {
		const char *name;
		char **at;
	} parameters[] = {
		{"ca", &site->ca},
		{"credentials", &site->credentials},
		{"endpoint", &site->endpoint}, /* s3 only, as "region" */
		{"region", &site->region},
	};
	const size_t known = site->s3 ? 4 : 2;
	char *rest = text, *name, *value, *plain;
	size_t i;

	strsep(&rest, "?");
	while ((name = strsep(&rest, "&"))) {
		value = name;
		strsep(&value, "=");
		for (i = 0; i < known; i++)
			if (strcmp(name, parameters[i].name) == 0)
				break;
		if (i == known)
			return kv_why(ret_why, -EINVAL,
				      "unknown parameter \"%s\"", name);
		if (!value || !*value)
			return kv_why(ret_why, -EINVAL, "%s= has no value",
				      name);
		if (*parameters[i].at)
			return kv_why(ret_why, -EINVAL, "%s= is given twice",
				      name);
		plain = curl_easy_unescape(NULL, value, 0, NULL);
		*parameters[i].at = plain ? strdup(plain) : NULL;
		curl_free(plain);
		if (!*parameters[i].at)
			return -ENOMEM;
	}
	return 0;
}

/* Check HOST or [ADDRESS], and :PORT if there is one. */
static int check_server(const char *server, char **ret_why)
{
	const char *port = server;
	char *end = NULL;

	if (strchr(server, '@'))
		return kv_why(ret_why, -EINVAL,
			      "credentials do not belong into a URL: "
			      "credentials=FILE");
	if (*server == '[') {
		port += 1 + strspn(port + 1, "0123456789abcdefABCDEF:.");
		port = port > server + 1 && *port == ']' ? port + 1 : server;
	} else if (!strchr("-._~", *server)) {
		port += strspn(port, PLAIN);
	}
	if (port == server || (*port && *port != ':'))
		return kv_why(ret_why, -EINVAL, "\"%s\" is no server", server);
	if (*port && (!isdigit((unsigned char)port[1]) ||
		      strtoul(port + 1, &end, 10) - 1 > 65534 || *end))
		return kv_why(ret_why, -EINVAL, "\"%s\" is no port", port + 1);
	return 0;
}

/* Check a path, and cut slashes off its end. */
static int check_path(char *path, char **ret_why)
{
	size_t n = strlen(path);

	while (n > 0 && path[n - 1] == '/')
		path[--n] = '\0';
	if (*path == '/' || *path == '.' || strstr(path, "//") ||
	    strstr(path, "/."))
		return kv_why(ret_why, -EINVAL,
			      "the path \"%s\" has a part that is empty or "
			      "begins with a dot",
			      path);
	n = strspn(path, PLAIN "/");
	if (path[n])
		return kv_why(ret_why, -EINVAL,
			      "'%c' does not belong into a path", path[n]);
	return 0;
}

/* Return whether @server is this machine. */
static bool is_local(const char *server)
{
	const size_t n = strncmp(server, "127.", 4) == 0
				 ? strspn(server, "0123456789.")
			 : strncmp(server, "localhost", 9) == 0 ? 9
			 : strncmp(server, "[::1]", 5) == 0	? 5
								: 0;

	return n > 0 && (!server[n] || server[n] == ':');
}

/* Check the endpoint, the bucket and the region. */
static int parse_s3(struct kv_site *site, const char *bucket, char **ret_why)
{
	const size_t n = strspn(bucket, WORD ".");
	char *endpoint = site->endpoint, *server;

	if (!*bucket)
		return kv_why(ret_why, -EINVAL, "the bucket is missing");
	if (bucket[n] || n < 3 || n > 63 || *bucket == '.')
		return kv_why(ret_why, -EINVAL,
			      "\"%s\" is no bucket: 3 to 63 letters a-z, "
			      "digits, dots and dashes",
			      bucket);
	if (!endpoint)
		return kv_why(ret_why, -EINVAL, "endpoint=URL is missing");
	if (strncmp(endpoint, "http://", 7) != 0 &&
	    strncmp(endpoint, "https://", 8) != 0)
		return kv_why(ret_why, -EINVAL,
			      "endpoint=%s is neither http:// nor https://",
			      endpoint);
	server = strchr(endpoint, '/') + 2;
	if (*server && server[strlen(server) - 1] == '/')
		server[strlen(server) - 1] = '\0';
	if (strchr(server, '/'))
		return kv_why(ret_why, -EINVAL,
			      "endpoint= has a path behind its server");
	if (!site->region)
		site->region = strdup("us-east-1");
	if (!site->region)
		return -ENOMEM;
	if (site->region[strspn(site->region, WORD)])
		return kv_why(ret_why, -EINVAL, "\"%s\" is no region",
			      site->region);
	return check_server(server, ret_why);
}

int kv_site_new(const char *scheme, const char *given,
		struct kv_site **ret_site, char **ret_why)
{
	_cleanup_(site_freep) struct kv_site *site = calloc(1, sizeof(*site));
	_cleanup_(kv_freep) char *url = strdup(given);
	const bool local = strcmp(scheme, "http+unix") == 0;
	const char *bucket = "", *server = "http://localhost";
	char *path;
	int n, r;

	*ret_why = NULL;
	if (!site || !url)
		return -ENOMEM;
	site->s3 = strcmp(scheme, "s3") == 0;
	if (!local && strncmp(url, "//", 2) != 0)
		return kv_why(ret_why, -EINVAL, "%s: is followed by //",
			      scheme);
	r = parse_query(site, url, ret_why);
	if (r < 0)
		return r;
	path = strchrnul(local ? url : url + 2, local ? ':' : '/');
	if (*path)
		*path++ = '\0';
	if (local &&
	    (*url != '/' ||
	     strlen(url) >= sizeof(((struct sockaddr_un *)0)->sun_path)))
		return kv_why(ret_why, -EINVAL,
			      "\"%s\" is not the absolute path of a socket",
			      url);
	if (local && *path && *path++ != '/')
		return kv_why(ret_why, -EINVAL,
			      "the socket is followed by :/PREFIX");
	r = check_path(path, ret_why);
	if (r < 0)
		return r;
	if (site->s3) {
		bucket = url + 2;
		r = parse_s3(site, bucket, ret_why);
		server = site->endpoint;
	} else if (local) {
		site->socket = strdup(url);
	} else {
		server = url;
		r = check_server(url + 2, ret_why);
		if (r == 0 && site->credentials &&
		    strcmp(scheme, "https") != 0 && !is_local(url + 2))
			r = kv_why(ret_why, -EINVAL,
				   "a password would cross the net for all to "
				   "read: https, or no credentials=");
	}
	if (r < 0)
		return r;
	/* SCHEME://SERVER/[BUCKET/][PATH/] */
	n = asprintf(&site->base, "%s%s%s/%s%s%s%s",
		     server == url ? scheme : "", server == url ? ":" : "",
		     server, bucket, *bucket ? "/" : "", path,
		     *path ? "/" : "");
	if (n < 0)
		site->base = NULL;
	if (n < 0 || (local && !site->socket))
		return -ENOMEM;
	if (n > KV_SITE_BASE_MAX)
		return kv_why(ret_why, -EINVAL, "it is too long");
	site->root = (size_t)n - strlen(path) - (*path != '\0');
	if (site->ca && access(site->ca, R_OK) < 0)
		return kv_why(ret_why, -errno, "ca=%s: %s", site->ca,
			      strerror(errno));
	for (size_t i = 0; !site->ca && i < KV_ARRAY_LEN(bundles); i++)
		if (access(bundles[i], R_OK) == 0)
			site->ca = strdup(bundles[i]);
	r = site->credentials ? read_credentials(site, ret_why) : 0;
	if (r == 0)
		*ret_site = kv_steal(site);
	return r;
}
