/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - a backend on a web server: each operation on an object is one or more
 * requests, which a dialect for the kind of server prepares.
 */
#ifndef KV_CACHE_REMOTE_HTTP_H
#define KV_CACHE_REMOTE_HTTP_H

#include <curl/curl.h>

#include "cache/remote/backend.h"
#include "cache/remote/site.h"

/* The longest URL is a list's, with a name in its query. */
#define KV_URL_MAX (6 * KV_SITE_BASE_MAX + 6 * KV_OBJECT_NAME_MAX + 128)
#define KV_HTTP_ASK 1 /* result of next(): there is one more request */

/* An operation in flight, and its current request. */
struct kv_exchange {
	struct kv_remote_op *op;
	const struct kv_site *site;
	unsigned step; /* requests that have ended */

	/* Set by next(); all zero before each call. */
	const char *method;
	char url[KV_URL_MAX];
	struct iovec body[2]; /* of PUT and POST; lives until the answer */
	struct curl_slist *headers; /* kv_http_header */
	bool object;		    /* the answer is the object of a GET */
	bool page;		    /* the answer is a text of any length */

	/* The last answer: its HTTP status (0: none), its text with a NUL, or
	 * NULL. */
	long status;
	char *text;
	size_t text_bytes;

	/* State that next() keeps from one request to the next. */
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
/* Return the status for an error answer, which HTTP alone makes @r, and set the
 * cause. */
int kv_s3_judge(struct kv_exchange *x, int r);

/* Set the request's method and its URL: the object's name. */
void kv_http_ask(struct kv_exchange *x, const char *method);
/* Add a header to the request, or with "" remove one of libcurl's; -ENOMEM. */
int kv_http_header(struct kv_exchange *x, const char *name, const char *value);

/* Return the status of an operation that an HTTP status of failure ends. */
int kv_http_errno(enum kv_remote_call call, long status);

#endif
