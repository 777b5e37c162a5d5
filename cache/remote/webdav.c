/* SPDX-License-Identifier: Apache-2.0 */
/*
 * webdav.c - a backend on a web server that knows PUT, DELETE and MOVE and makes parent
 * folders: http://HOST[:PORT][/PREFIX].
 *
 * WebDAV keeps no headers, so an object's note is another object, NAME.digest, put last.
 * Publishing puts a temporary object and moves it to its name, unless that exists; the
 * server decides whether this is atomic.  The temporary object is removed in any case.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "cache/remote/http.h"
#include "common/bytes.h"
#include "common/copy.h"

#define NOTE ".digest"
#define PART_BYTES 8u
#define DROP_MS 3000l

enum {
	PUBLISH_PART,
	PUBLISH_MOVE,
	PUBLISH_NOTE,
	PUBLISH_DROP,
	PUBLISH_LOOK,
	PUBLISH_MEND,
	PUBLISH_MENDED,
};

static int put_object(struct kv_exchange *x, const char *suffix)
{
	kv_http_ask(x, "PUT", suffix);
	x->body = x->op->data;
	x->body_n = x->op->length;
	snprintf(x->headers[0], sizeof(x->headers[0]), "Expect:");
	return KV_HTTP_ASK;
}

static int put_note(struct kv_exchange *x)
{
	kv_http_ask(x, "PUT", NOTE);
	x->note_n = kv_object_note(x->op, x->note);
	x->body = x->note;
	x->body_n = x->note_n;
	return KV_HTTP_ASK;
}

static int get_note(struct kv_exchange *x)
{
	kv_http_ask(x, "GET", NOTE);
	x->wants = KV_ANSWER_NOTE;
	return KV_HTTP_ASK;
}

static int get_object(struct kv_exchange *x)
{
	if (x->op->length > x->op->room)
		return -EFBIG;
	kv_http_ask(x, "GET", "");
	x->wants = KV_ANSWER_OBJECT;
	return KV_HTTP_ASK;
}

static int next_of_get(struct kv_exchange *x, int r)
{
	const unsigned noted = x->op->noted ? 0 : 1; /* at that step */

	if (x->step < noted) {
		x->note_n = 0;
		return get_note(x);
	}
	if (r == 0 && x->step == 1 && noted)
		r = kv_object_read_note(x->op, x->note, x->note_n);
	if (r < 0 || x->step > noted || x->op->call == KV_REMOTE_EXISTS)
		return r;
	return get_object(x);
}

static int next_of_put(struct kv_exchange *x, int r)
{
	if (x->step == 0)
		return put_object(x, "");
	return r < 0 || x->step == 2 ? r : put_note(x);
}

/* The temporary name of a layout is always the same, so that the next attempt overwrites
 * an object that was left. */
static int put_part(struct kv_exchange *x)
{
	char digits[2 * PART_BYTES + 1];

	kv_hex(x->op->digest.b, PART_BYTES, digits);
	snprintf(x->part, sizeof(x->part), ".%s", digits);
	return put_object(x, x->part);
}

static int move_part(struct kv_exchange *x)
{
	kv_http_ask(x, "MOVE", "");
	snprintf(x->headers[0], sizeof(x->headers[0]), "Destination: %s",
		 x->url);
	snprintf(x->headers[1], sizeof(x->headers[1]), "Overwrite: F");
	kv_http_ask(x, "MOVE", x->part);
	return KV_HTTP_ASK;
}

/* Return whether a put was never sent. */
static bool is_unreached(int r)
{
	return r == -ECONNREFUSED || r == -EHOSTUNREACH || r == -ETIMEDOUT;
}

/* Remove the temporary object of a publish that ended with @status. */
static int drop_part(struct kv_exchange *x, int status)
{
	x->phase = PUBLISH_DROP;
	x->first = status;
	kv_http_ask(x, "DELETE", x->part);
	x->limit_ms = DROP_MS;
	x->part[0] = '\0';
	return KV_HTTP_ASK;
}

/* Put the note of an object without one: its publisher has died, or is about to put the
 * same note. */
static int mend(struct kv_exchange *x, int r)
{
	if (r == 0)
		r = kv_object_read_note(x->op, x->note, x->note_n);
	if (r != -ENOENT && r != -EBADMSG)
		return x->first;
	x->phase = PUBLISH_MEND;
	kv_http_ask(x, "GET", "");
	x->wants = KV_ANSWER_PAGE;
	return KV_HTTP_ASK;
}

static int next_of_publish(struct kv_exchange *x, int r)
{
	if (x->step == 0) {
		x->phase = PUBLISH_PART;
		return put_part(x);
	}
	switch (x->phase) {
	case PUBLISH_PART:
		x->phase = PUBLISH_MOVE;
		if (is_unreached(r))
			return r;
		return r < 0 ? drop_part(x, r) : move_part(x);
	case PUBLISH_MOVE:
		if (r < 0)
			return drop_part(x, r);
		x->part[0] = '\0';
		x->phase = PUBLISH_NOTE;
		return put_note(x);
	case PUBLISH_NOTE:
		return r;
	case PUBLISH_DROP:
		x->phase = PUBLISH_LOOK;
		return x->first == -EEXIST ? get_note(x) : x->first;
	case PUBLISH_LOOK:
		return mend(x, r);
	case PUBLISH_MEND:
		if (r < 0)
			return x->first;
		x->op->digest = kv_digest_of(x->op->data, x->op->length);
		x->phase = PUBLISH_MENDED;
		return put_note(x);
	default:
		return x->first;
	}
}

static int undo(struct kv_exchange *x)
{
	return x->part[0] ? drop_part(x, -ECANCELED) : 0;
}

static int next_of_remove(struct kv_exchange *x, int r)
{
	if (x->step == 0) {
		kv_http_ask(x, "DELETE", NOTE);
		return KV_HTTP_ASK;
	}
	if (x->step == 1 && (r == 0 || r == -ENOENT)) {
		x->first = r;
		kv_http_ask(x, "DELETE", "");
		return KV_HTTP_ASK;
	}
	return r == 0 || r == -ENOENT ? x->first : r;
}

enum { CLEAR_NOTE, CLEAR_LAYOUT, CLEAR_FOLDER, CLEAR_BACK, CLEAR_BACK_NOTE };

/* Remove the folder with all objects. */
static int delete_folder(struct kv_exchange *x)
{
	x->phase = CLEAR_FOLDER;
	kv_http_ask(x, "DELETE", "");
	strrchr(x->url, '/')[1] = '\0';
	return KV_HTTP_ASK;
}

/* Clear a folder: fetch the layout, remove the folder, and put the layout back, if it was
 * whole.  x->first: status of the removal. */
static int next_of_clear(struct kv_exchange *x, int r)
{
	if (x->step == 0) {
		x->phase = CLEAR_NOTE;
		return get_note(x);
	}
	switch (x->phase++) {
	case CLEAR_NOTE:
		if (r == 0)
			r = kv_object_read_note(x->op, x->note, x->note_n);
		if (r == 0 && x->op->length <= x->op->room)
			return get_object(x);
		x->first = 1;
		return r < 0 && r != -ENOENT && r != -EBADMSG
			       ? r
			       : delete_folder(x);
	case CLEAR_LAYOUT:
		x->first = r < 0;
		return r < 0 && r != -ENOENT && r != -EBADMSG
			       ? r
			       : delete_folder(x);
	case CLEAR_FOLDER:
		if (x->first || (r < 0 && r != -ENOENT))
			return r;
		x->first = r;
		return put_object(x, "");
	case CLEAR_BACK:
		return r < 0 ? r : put_note(x);
	default:
		return r < 0 ? r : x->first;
	}
}

static int next(struct kv_exchange *x, int r)
{
	switch (x->op->call) {
	case KV_REMOTE_EXISTS:
	case KV_REMOTE_GET:
		return next_of_get(x, r);
	case KV_REMOTE_PUT:
		return next_of_put(x, r);
	case KV_REMOTE_PUBLISH:
		return next_of_publish(x, r);
	case KV_REMOTE_CLEAR:
		return next_of_clear(x, r);
	default:
		return next_of_remove(x, r);
	}
}

/* Not the folder itself: servers may refuse or redirect users who may not list it. */
static void probe(struct kv_exchange *x)
{
	kv_http_ask(x, "HEAD", "kvfs-probe" NOTE);
}

static CURLcode authorize(CURL *easy, const struct kv_site *site)
{
	(void)site;
	return curl_easy_setopt(easy, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
}

static const struct kv_http_dialect dialect = {
	.authorize = authorize,
	.next = next,
	.undo = undo,
	.probe = probe,
	.comes_by_put = true,
};

static int webdav_open(const char *scheme, const char *url, void **ret_backend,
		       char **ret_why)
{
	struct kv_site *site;
	int r = kv_site_new(scheme, url, &site, ret_why);

	return r < 0 ? r : kv_http_open(&dialect, site, ret_backend, ret_why);
}

static int http_open(const char *url, void **ret_backend, char **ret_why)
{
	return webdav_open("http", url, ret_backend, ret_why);
}

static int https_open(const char *url, void **ret_backend, char **ret_why)
{
	return webdav_open("https", url, ret_backend, ret_why);
}

const struct kv_remote_driver kv_remote_http = {
	.scheme = "http",
	.open = http_open,
	.submit = kv_http_submit,
	.cancel = kv_http_cancel,
	.fd = kv_http_fd,
	.reap = kv_http_reap,
	.close = kv_http_close,
};

const struct kv_remote_driver kv_remote_https = {
	.scheme = "https",
	.open = https_open,
	.submit = kv_http_submit,
	.cancel = kv_http_cancel,
	.fd = kv_http_fd,
	.reap = kv_http_reap,
	.close = kv_http_close,
};
