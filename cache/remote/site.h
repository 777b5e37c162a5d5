/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.h - the site of a backend on a web server: its URL and credentials.
 */
#ifndef KV_CACHE_REMOTE_SITE_H
#define KV_CACHE_REMOTE_SITE_H

#include "common/kv.h"

#define KV_SITE_BASE_MAX 1024
#define KV_SITE_TOKEN_MAX 4096

/* Fixed, except for the credentials.  The site owns the texts; NULL: not given. */
struct kv_site {
	char *base;	   /* "http://HOST:PORT/PREFIX/", percent-encoded */
	size_t root;	   /* length of its part up to the server or bucket */
	char *socket;	   /* of http+unix */
	char *ca;	   /* file of the only trusted certificates */
	char *region;	   /* of s3 */
	char *endpoint;	   /* of s3 */
	char *credentials; /* file */
	bool s3;	   /* credentials are those of s3 */
	char *secrets;	   /* text of that file; the next three are in it */
	const char *user, *secret; /* both or none */
	const char *token;	   /* of s3 */
	unsigned version; /* of the credentials: how often others were read */
	uint64_t read_ns; /* when they were read */
};

/*
 * Parse a URL, and read the credentials file that it names, which only the daemon's user
 * or root may own or read.  @scheme is "http", "https", "http+unix" or "s3", @url the rest
 * of the URL after the colon.  Returns -EINVAL, errors of open(2), -EACCES: other users may read the
 * file, or -ENOMEM; *@ret_why is then a message for the user, without the URL (caller
 * frees; NULL: no memory).
 */
int kv_site_new(const char *scheme, const char *url, struct kv_site **ret_site,
		char **ret_why);
void kv_site_free(struct kv_site *site);

/* Read the credentials file again, at most once a second.  Return whether the site has
 * other credentials than those of @version. */
bool kv_site_read_again(struct kv_site *site, unsigned version);

/* Check that root or the daemon's user listens at the other end of @fd, and that nobody
 * else may replace the UNIX socket of the site.  -EPERM and other errors, with the cause
 * in @why. */
int kv_site_check_peer(const struct kv_site *site, int fd, char *why,
		       size_t room);

/* Parse the text of a credentials file, which must live as long as the site; for the
 * fuzzer.  -EINVAL. */
int kv_site_read_credentials(struct kv_site *site, char *text, bool s3,
			     char **ret_why);

#endif
