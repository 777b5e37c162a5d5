/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - a backend on a web server: each operation on an object is one or more
 * requests, which a dialect for the kind of server prepares.
 */
#ifndef KV_CACHE_REMOTE_HTTP_H
#define KV_CACHE_REMOTE_HTTP_H

#include <curl/curl.h>

#include "cache/remote/backend.h"

/* ---- site.c: the URL and the credentials of a backend ---- */

#define KV_SITE_BASE_MAX 1024
#define KV_SITE_TOKEN_MAX 4096

/* Constant but for the credentials.  The site owns the texts; NULL: none. */
struct kv_site {
	char *base;	   /* "http://HOST:PORT/PREFIX/", percent-encoded */
	size_t root;	   /* bytes of @base before the prefix */
	char *socket;	   /* path of the UNIX socket */
	char *ca;	   /* file of the only trusted certificates */
	char *region;	   /* of s3 */
	char *endpoint;	   /* of s3 */
	char *credentials; /* file */
	bool s3;	   /* the credentials are for the scheme s3 */
	char *secrets; /* text of @credentials; @user to @token point here */
	const char *user, *secret; /* both are set, or none */
	const char *token;	   /* of s3 */
	unsigned version; /* how often new credentials have been read */
	uint64_t read_ns; /* when the credentials were last read */
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

/* ---- requests ---- */

/* The longest URL is that of a list, with an object's name in the query. */
#define KV_URL_MAX (6 * KV_SITE_BASE_MAX + 6 * KV_OBJECT_NAME_MAX + 128)
#define KV_HTTP_ASK 1 /* result of next(): send one more request */

/* An operation in flight, and its current request. */
struct kv_exchange {
	struct kv_remote_op *op;
	const struct kv_site *site;
	unsigned step; /* number of requests that have ended */

	/* The request: set by kv_http_ask(), and changed by next() after it. */
	const char *method;
	char url[KV_URL_MAX];
	struct iovec body[2]; /* body of PUT or POST; lives until the answer */
	struct curl_slist *headers; /* set by kv_http_header */
	bool object;		    /* the answer is an object */
	bool page; /* the answer may have PAGE_MAX bytes of text */

	/* The last answer: its HTTP status (0: none), its text with a NUL, or
	 * NULL. */
	long status;
	char *text;
	size_t text_bytes;

	/* State of kv_web_next or kv_s3_next from one request to the next. */
	int phase;
	size_t at;
	char *made; /* a request body that next() allocated; freed at the end */
};

/*
 * Prepare the next request; the last request ended with @r, and op->why has the
 * cause.  Returns KV_HTTP_ASK, or the status of the operation.
 */
int kv_web_next(struct kv_exchange *x, int r);
int kv_s3_next(struct kv_exchange *x, int r);
/* Return the status for an error answer of an S3 server, and set the cause.
 * HTTP's own status code gives @r. */
int kv_s3_judge(struct kv_exchange *x, int r);

/* Begin to prepare a request for the operation's object; @method NULL: that of the
 * operation.  Returns KV_HTTP_ASK. */
int kv_http_ask(struct kv_exchange *x, const char *method);
/* Add a header to the request, or with "" remove one of libcurl's; -ENOMEM. */
int kv_http_header(struct kv_exchange *x, const char *name, const char *value);

#endif
