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

/* The longest is a list's: two names in a query. */
#define KV_URL_MAX (3 * KV_SITE_BASE_MAX + 6 * KV_OBJECT_NAME_MAX + 128)
#define KV_HTTP_HEADERS 4u
#define KV_HTTP_HEADER_MAX (KV_SITE_TOKEN_MAX + 1024)
#define KV_HTTP_ASK 1 /* next: there is one more request */

enum kv_http_answer {
	KV_ANSWER_NOTHING, /* skip a body, up to a limit */
	KV_ANSWER_NOTE,
	KV_ANSWER_OBJECT,
	KV_ANSWER_PAGE, /* any text that fits into op->data; sets op->length */
};

/* An operation in flight, and its current request. */
struct kv_exchange {
	struct kv_remote_op *op;
	const struct kv_site *site;
	unsigned step; /* requests that have ended */

	/* Set by next(); all zero before each call. */
	const char *method;
	char url[KV_URL_MAX];
	const void *body; /* of PUT; lives as long as the exchange */
	uint64_t body_n;
	enum kv_http_answer wants;
	long limit_ms; /* deadline of the request; 0: none */
	char headers[KV_HTTP_HEADERS][KV_HTTP_HEADER_MAX];

	/* These stay from one request to the next. */
	char note[KV_OBJECT_NOTE_MAX + 1]; /* to put, or as it came */
	size_t note_n;
	/* Suffix of the temporary object that may exist; "": none does. */
	char part[24];
	int first;		    /* status of an earlier request */
	int phase;		    /* next()'s own, as are these */
	size_t at;		    /* offset in a page */
	char last[KV_NAME_MAX + 1]; /* the name at that offset */
};

struct kv_http_dialect {
	/* The header that has the note of an object; NULL: none does. */
	const char *note_header;
	/* Set how @easy authenticates. */
	CURLcode (*authorize)(CURL *easy, const struct kv_site *site);
	/*
	 * Prepare the next request; the one before ended with @r.  Returns
	 * KV_HTTP_ASK, or the status of the operation.
	 */
	int (*next)(struct kv_exchange *x, int r);
	/*
	 * May be NULL.  Called when the operation was cancelled, and its request broken
	 * off.  Prepare a request that cleans up, after which next() returns
	 * -ECANCELED; or return 0: there is nothing to clean up.
	 */
	int (*undo)(struct kv_exchange *x);
	/* Prepare a request that tells whether the site may be used. */
	void (*probe)(struct kv_exchange *x);
	bool comes_by_put; /* the site need not exist before the first put */
};

/* Set the request's method and its URL: the object's name and @suffix. */
void kv_http_ask(struct kv_exchange *x, const char *method, const char *suffix);

/*
 * The calls of struct kv_remote_driver, for every dialect.  Open takes the site over,
 * also when it fails; it probes the site, for three seconds at most: -EHOSTUNREACH,
 * -ECONNREFUSED, -ETIMEDOUT, -EACCES, -ENOENT, or another status of backend.h.
 */
int kv_http_open(const struct kv_http_dialect *dialect, struct kv_site *site,
		 void **ret_backend, char **ret_why);
void kv_http_submit(void *backend, struct kv_remote_op *const *ops, size_t n);
void kv_http_cancel(void *backend, struct kv_remote_op *op);
int kv_http_fd(void *backend);
size_t kv_http_reap(void *backend, struct kv_remote_op **ret_ops, size_t max);
int kv_http_close(void *backend);

#endif
