/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3.c - a backend in a bucket: s3://BUCKET[/PREFIX]?endpoint=URL.
 *
 * The note is a header of the object, x-amz-meta-kvfs, so that one HEAD request finds the
 * object and its note.  libcurl signs requests, but not bodies: the note has the digest.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "cache/remote/http.h"

#define NOTE "x-amz-meta-kvfs"
#define LISTED "100" /* objects; a page has room for them */

static int ask(struct kv_exchange *x, const char *method)
{
	kv_http_ask(x, method, "");
	snprintf(x->headers[0], sizeof(x->headers[0]),
		 "x-amz-content-sha256: UNSIGNED-PAYLOAD");
	if (x->site->token)
		snprintf(x->headers[1], sizeof(x->headers[1]),
			 "x-amz-security-token: %s", x->site->token);
	return KV_HTTP_ASK;
}

static int head(struct kv_exchange *x, enum kv_http_answer wants)
{
	x->wants = wants;
	return ask(x, "HEAD");
}

static int put(struct kv_exchange *x)
{
	int n;

	x->note_n = kv_object_note(x->op, x->note);
	n = (int)x->note_n - 1; /* not the newline */
	snprintf(x->headers[2], sizeof(x->headers[2]), NOTE ": %.*s", n,
		 x->note);
	x->body = x->op->data;
	x->body_n = x->op->length;
	return ask(x, "PUT");
}

/* Not every server knows If-None-Match: send a HEAD request first. */
static int next_of_publish(struct kv_exchange *x, int r)
{
	if (x->step == 0)
		return head(x, KV_ANSWER_NOTHING);
	if (x->step == 2 || (r < 0 && r != -ENOENT))
		return r;
	if (r == 0)
		return -EEXIST;
	snprintf(x->headers[3], sizeof(x->headers[3]), "If-None-Match: *");
	return put(x);
}

/* DELETE succeeds, too, if there is no object: send a HEAD request first. */
static int next_of_remove(struct kv_exchange *x, int r)
{
	if (x->step == 0)
		return head(x, KV_ANSWER_NOTHING);
	return r < 0 || x->step == 2 ? r : ask(x, "DELETE");
}

enum { CLEAR_LIST, CLEAR_OBJECT };

/* Add the folder of the object and @last to the query of the URL, with slashes encoded. */
static int add_name(struct kv_exchange *x, const char *last)
{
	char name[KV_SITE_BASE_MAX + KV_OBJECT_NAME_MAX + 80];
	int r = 0;
	const char *slash = strrchr(x->op->name, '/');

	snprintf(name, sizeof(name), "%s%.*s%s", x->site->base + x->site->root,
		 (int)(slash + 1 - x->op->name), x->op->name, last);
	for (char *at = name, *part; r == 0 && (part = strsep(&at, "/"));) {
		r = kv_site_encode(x->url, sizeof(x->url) - 4, part);
		if (r == 0 && at)
			strcat(x->url, "%2F");
	}
	return r;
}

/* List the first objects behind @after.  The signature needs sorted parameters. */
static int list(struct kv_exchange *x, const char *after)
{
	static const char then[] = "&start-after=";
	int r;

	x->phase = CLEAR_LIST;
	x->wants = KV_ANSWER_PAGE;
	ask(x, "GET");
	strcpy(x->url + x->site->root - 1,
	       "?list-type=2&max-keys=" LISTED "&prefix=");
	r = add_name(x, "");
	if (r < 0 || strlen(x->url) + sizeof(then) + 4 > sizeof(x->url))
		return -ENAMETOOLONG;
	strcat(x->url, then);
	r = add_name(x, after);
	return r < 0 ? r : KV_HTTP_ASK;
}

/* Return the last part of the next name in the page, or false: there is none. */
static bool next_name(struct kv_exchange *x, char name[KV_NAME_MAX + 1])
{
	char *page = (char *)x->op->data;
	char *begin = strstr(page + x->at, "<Key>"), *end, *slash;

	end = begin ? strstr(begin, "</Key>") : NULL;
	if (!end)
		return false;
	x->at = (size_t)(end - page);
	slash = memrchr(begin, '/', (size_t)(end - begin));
	begin = slash ? slash + 1 : begin + strlen("<Key>");
	snprintf(name, KV_NAME_MAX + 1, "%.*s", (int)(end - begin), begin);
	return true;
}

/* Clear a folder: list a page, and delete its objects one by one. */
static int next_of_clear(struct kv_exchange *x, int r)
{
	char name[KV_NAME_MAX + 1];

	if (x->step == 0) {
		x->last[0] = '\0';
		return list(x, ".layout");
	}
	if (r < 0 && !(r == -ENOENT && x->phase == CLEAR_OBJECT))
		return r;
	if (x->phase == CLEAR_LIST) {
		x->op->data[KV_MIN(x->op->length, x->op->room - 1)] = '\0';
		x->at = 0;
	}
	if (next_name(x, name)) {
		x->phase = CLEAR_OBJECT;
		snprintf(x->last, sizeof(x->last), "%s", name);
		ask(x, "DELETE");
		strrchr(x->url, '/')[1] = '\0';
		kv_site_encode(x->url, sizeof(x->url), name);
		return KV_HTTP_ASK;
	}
	if (x->phase == CLEAR_OBJECT)
		return list(x, x->last);
	return x->last[0] ? 0 : -ENOENT;
}

static int next(struct kv_exchange *x, int r)
{
	switch (x->op->call) {
	case KV_REMOTE_EXISTS:
		return x->step == 0 ? head(x, KV_ANSWER_NOTE) : r;
	case KV_REMOTE_GET:
		x->wants = KV_ANSWER_OBJECT;
		return x->step == 0 ? ask(x, "GET") : r;
	case KV_REMOTE_PUT:
		return x->step == 0 ? put(x) : r;
	case KV_REMOTE_PUBLISH:
		return next_of_publish(x, r);
	case KV_REMOTE_CLEAR:
		return next_of_clear(x, r);
	default:
		return next_of_remove(x, r);
	}
}

/* Probe the bucket. */
static void probe(struct kv_exchange *x)
{
	ask(x, "HEAD");
	x->url[x->site->root - 1] = '\0';
}

static CURLcode authorize(CURL *easy, const struct kv_site *site)
{
	char provider[128];

	snprintf(provider, sizeof(provider), "aws:amz:%s:s3", site->region);
	return curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, provider);
}

static const struct kv_http_dialect dialect = {
	.note_header = NOTE,
	.authorize = authorize,
	.next = next,
	.probe = probe,
};

static int s3_open(const char *url, void **ret_backend, char **ret_why)
{
	struct kv_site *site;
	int r = kv_site_new("s3", url, &site, ret_why);

	return r < 0 ? r : kv_http_open(&dialect, site, ret_backend, ret_why);
}

const struct kv_remote_driver kv_remote_s3 = {
	.scheme = "s3",
	.open = s3_open,
	.submit = kv_http_submit,
	.cancel = kv_http_cancel,
	.fd = kv_http_fd,
	.reap = kv_http_reap,
	.close = kv_http_close,
};
