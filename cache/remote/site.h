/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.h - where a web server keeps the objects of a remote tier, and as whom it
 * is asked.
 */
#ifndef KV_CACHE_REMOTE_SITE_H
#define KV_CACHE_REMOTE_SITE_H

#include "common/kv.h"

#define KV_SITE_BASE_MAX 1024
#define KV_SITE_TOKEN_MAX 4096

/* Fixed.  Texts are the site's; NULL: not given. */
struct kv_site {
	char *base;	     /* "http://HOST:PORT/PREFIX/", percent-encoded */
	size_t root;	     /* so much of it is server, or server and bucket */
	char *ca;	     /* file of certificates that are trusted instead */
	char *region;	     /* of s3 */
	char *user, *secret; /* both or none */
	char *token;	     /* of s3 */
};

/*
 * Take a URL to pieces, and read the credentials file that it names; nobody but
 * the daemon's user, or root, may own that file or read it.  @scheme is "http",
 * "https" or "s3", @url what follows it and its colon.  Returns -EINVAL, what
 * open(2) says of a file, -EACCES of one that others may read, or -ENOMEM;
 * *@ret_why is then a message for the user, which does not say the URL again
 * (caller frees; NULL: no memory).
 */
int kv_site_new(const char *scheme, const char *url, struct kv_site **ret_site,
		char **ret_why);
void kv_site_free(struct kv_site *site);

/* The parser of credentials files, for its fuzzer: -EINVAL, -ENOMEM. */
int kv_site_read_credentials(struct kv_site *site, char *text, bool s3,
			     char **ret_why);

/* Append @text to the NUL-ended @url, of @room bytes, with every character that
 * has a meaning in URLs encoded, but for slashes.  -ENAMETOOLONG. */
int kv_site_encode(char *url, size_t room, const char *text);

#endif
