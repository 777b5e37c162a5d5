/* SPDX-License-Identifier: Apache-2.0 */
/*
 * web.c - the backends http:, https: and http+unix:, on a server with GET, HEAD, PUT and
 * DELETE, and with MKCOL if it does not make folders by itself.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "cache/remote/http.h"

enum { FIRST, FOLDERS, AGAIN };

static int put(struct kv_exchange *x)
{
	kv_http_ask(x, "PUT");
	return kv_http_header(x, "Expect", "") < 0 ? -ENOMEM : KV_HTTP_ASK;
}

/* A PUT, and if the server lacks the folder, MKCOL for each folder and the PUT again.
 * Only the last answer counts: folders may exist. */
static int next_of_put(struct kv_exchange *x, int r)
{
	const char *slash;

	if (x->step == 0)
		return put(x);
	if (x->phase == FIRST) {
		if (x->status != 404 && x->status != 409)
			return r;
		x->phase = FOLDERS;
		x->at = x->site->root;
	}
	if (x->phase == AGAIN || (x->status == 0 && r < 0))
		return r;
	kv_http_ask(x, "MKCOL");
	slash = strchr(x->url + x->at, '/');
	if (slash) {
		x->at = (size_t)(slash + 1 - x->url);
		x->url[x->at] = '\0';
		return KV_HTTP_ASK;
	}
	x->phase = AGAIN;
	return put(x);
}

/* HEAD of the prefix.  A server that does not list folders may refuse or redirect it:
 * then a name below it is requested. */
static int next_of_probe(struct kv_exchange *x, int r)
{
	if (x->step == 0)
		return kv_http_ask(x, "HEAD");
	if (r == 0 || r == -ENOENT || (x->step == 1 && x->status == 405))
		return 0;
	if (x->step == 2 || (x->status != 403 && x->status / 100 != 3))
		return r;
	kv_http_ask(x, "HEAD");
	strcat(x->url, "kvfs-probe");
	return KV_HTTP_ASK;
}

int kv_web_next(struct kv_exchange *x, int r)
{
	if (x->op->call == KV_REMOTE_PUT)
		return next_of_put(x, r);
	if (!x->op->name[0])
		return next_of_probe(x, r);
	if (x->step == 0)
		return kv_http_ask(x, NULL);
	/* The answer to a DELETE of a folder may count its objects. */
	if (r == 0 && x->text && x->op->call == KV_REMOTE_DELETE)
		x->op->length = strtoull(x->text, NULL, 10);
	return r;
}
