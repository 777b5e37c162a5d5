/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - operations on objects that are one or more requests to a web server,
 * and what differs between kinds of servers.
 */
#ifndef KV_CACHE_REMOTE_HTTP_H
#define KV_CACHE_REMOTE_HTTP_H

#include <curl/curl.h>

#include "cache/remote/backend.h"
#include "cache/remote/site.h"

/* With a list's: two names in a query, and what stands before them. */
#define KV_URL_MAX (3 * KV_SITE_BASE_MAX + 6 * KV_OBJECT_NAME_MAX + 128)
#define KV_HTTP_HEADERS 4u
#define KV_HTTP_HEADER_MAX (KV_SITE_TOKEN_MAX + 1024)
#define KV_HTTP_ASK 1 /* next: there is one more request */

enum kv_http_answer {
	KV_ANSWER_NOTHING, /* a body is read past, and cut where it is long */
	KV_ANSWER_NOTE,
	KV_ANSWER_OBJECT,
	KV_ANSWER_PAGE, /* any text that fits into op->data; op->length is its */
};

/* One operation under way: the request that is, or is to be, made for it. */
struct kv_exchange {
	struct kv_remote_op *op;
	const struct kv_site *site;
	unsigned step; /* requests that have ended */

	/* What next says; all zero before it is called. */
	const char *method;
	char url[KV_URL_MAX];
	const void *body; /* of PUT; lives as long as the exchange */
	uint64_t body_n;
	enum kv_http_answer wants;
	long limit_ms; /* it has no more time; 0: whoever waits knows */
	char headers[KV_HTTP_HEADERS][KV_HTTP_HEADER_MAX];

	/* These stay from one request to the next. */
	char note[KV_OBJECT_NOTE_MAX + 1]; /* to put, or as it came */
	size_t note_n;
	/* What a temporary name ends with, of what may be there; "": nothing is. */
	char part[24];
	int first; /* how an earlier request ended */
	int phase; /* next's own, as is this: of a page */
	size_t at;
	char last[KV_NAME_MAX + 1]; /* name of it that was dealt with */
};

struct kv_http_dialect {
	/* That of the note, if it comes with the object; else NULL. */
	const char *note_header;
	/* How a new @easy shows the site's user and secret. */
	CURLcode (*authorize)(CURL *easy, const struct kv_site *site);
	/*
	 * Prepare the next request; the one before ended with @r.  Returns
	 * KV_HTTP_ASK, or the status of the operation.
	 */
	int (*next)(struct kv_exchange *x, int r);
	/*
	 * NULL, or: the operation was cancelled, and the request before broken off.
	 * Prepare one that removes what would stay, after which next returns
	 * -ECANCELED; or return 0: there is nothing.
	 */
	int (*undo)(struct kv_exchange *x);
	/* The request that tells whether the site is there, and may be used. */
	void (*probe)(struct kv_exchange *x);
	bool comes_by_put; /* it need not be there before */
};

/* Set the request's method and its address: the object's, and @suffix. */
void kv_http_ask(struct kv_exchange *x, const char *method, const char *suffix);

/*
 * The calls of struct kv_remote_driver, for every dialect.  Open takes the site
 * over, also when it fails; it asks the site once, and waits three seconds for
 * it at most: -EHOSTUNREACH, -ECONNREFUSED, -ETIMEDOUT, -EACCES, -ENOENT, or
 * another status that backend.h names.
 */
int kv_http_open(const struct kv_http_dialect *dialect, struct kv_site *site,
		 void **ret_backend, char **ret_why);
void kv_http_submit(void *backend, struct kv_remote_op *const *ops, size_t n);
void kv_http_cancel(void *backend, struct kv_remote_op *op);
int kv_http_fd(void *backend);
size_t kv_http_reap(void *backend, struct kv_remote_op **ret_ops, size_t max);
int kv_http_close(void *backend);

#endif
