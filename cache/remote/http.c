/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - operations on objects that are one or more requests to a web server.
 *
 * One thread makes all of them, by libcurl, which never waits; connections stay
 * for the next request (request.c).
 *
 * OWNS      the thread, its transfers, the site; operations from submit to reap.
 *
 * INVARIANTS
 *   (1) An operation is queued, under way in one transfer, or done.
 *
 * LOCKING   http->lock for the queues and flags; none during calls of libcurl.
 *           All else is the thread's.
 */
#include <poll.h>
#include <stdio.h>

#include "cache/remote/done.h"
#include "cache/remote/request.h"
#include "common/thread.h"
#include "common/bytes.h"

/* Answers that are small need not wait for those that are large. */
enum lane { SMALL, LARGE, LANES };

/* As many as the tier has under way at most, of gets and puts, or of questions: whom
 * the server keeps waiting takes nobody else's place. */
#define PER_LANE 128u
#define TRANSFERS (LANES * PER_LANE)
#define PROBE_MS 3000
#define IDLE_MS 60000
#define PATIENCE_NS 1000000000u /* at the end */

struct transfer {
	struct kv_request request; /* first; its x.op NULL: free */
	struct http *http;	   /* fixed */
};

struct http {
	const struct kv_http_dialect *dialect; /* fixed, as are these */
	struct kv_site *site;
	CURLM *multi;
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t ended;
	struct kv_remote_ops queued[LANES]; /* lock, as are these */
	struct kv_done done;
	bool running, stop, cancels;

	struct transfer transfers[TRANSFERS]; /* the thread's, as are these */
	unsigned active;
	bool unreached; /* the last try: now one at a time */
	/* When an answer was last not what was asked for: it may have been
	 * another's, and so may all that come on that connection.  0: never. */
	uint64_t damaged_ns;
	struct kv_remote_op probe;
	char why[CURL_ERROR_SIZE]; /* the probe failed */
};

/* ---- an operation ---- */

void kv_http_ask(struct kv_exchange *x, const char *method, const char *suffix)
{
	x->method = method;
	/* KV_URL_MAX has room for every name. */
	snprintf(x->url, sizeof(x->url), "%s", x->site->base);
	kv_site_encode(x->url, sizeof(x->url), x->op->name);
	kv_site_encode(x->url, sizeof(x->url), suffix);
}

static void end(struct transfer *t, int status)
{
	struct http *http = t->http;
	struct kv_remote_op *op = kv_steal(t->request.x.op);

	if (op == &http->probe && status < 0)
		kv_request_why(&t->request, http->why, sizeof(http->why));
	if (status == -EBADMSG || status == -EPROTO)
		http->damaged_ns = kv_now_ns();
	kv_request_end(&t->request, http->multi);
	http->active--;
	pthread_mutex_lock(&http->lock);
	kv_done_add(&http->done, op, status);
	pthread_mutex_unlock(&http->lock);
}

/* Make the request that was prepared. */
static int ask(struct transfer *t)
{
	t->request.distrust_ns = t->http->damaged_ns;
	return kv_request_begin(&t->request, t->http->multi);
}

/* Its last request ended with @r: make the next, or end it. */
static void go_on(struct transfer *t, int r)
{
	const struct kv_http_dialect *dialect = t->http->dialect;

	if (t->request.x.op == &t->http->probe) {
		if (t->request.x.step > 0) {
			end(t, r == -ENOENT && dialect->comes_by_put ? 0 : r);
			return;
		}
		dialect->probe(&t->request.x);
		r = KV_HTTP_ASK;
	} else {
		r = dialect->next(&t->request.x, r);
	}
	if (r == KV_HTTP_ASK) {
		r = ask(t);
		if (r == 0)
			return;
	}
	end(t, r);
}

/* Nobody waits for it: it ends now, or when it has cleaned up. */
static void break_off(struct transfer *t)
{
	const struct kv_http_dialect *dialect = t->http->dialect;

	kv_request_end(&t->request, t->http->multi);
	if (!dialect->undo || dialect->undo(&t->request.x) != KV_HTTP_ASK ||
	    ask(t) < 0)
		end(t, -ECANCELED);
}

static void begin(struct transfer *t, struct kv_remote_op *op)
{
	kv_request_end(&t->request, t->http->multi);
	t->request.x.op = op;
	t->request.x.step = 0;
	t->request.x.first = 0;
	t->request.x.part[0] = '\0';
	t->http->active++;
	go_on(t, 0);
}

static void fail_queued(struct http *http, int status)
{
	struct kv_remote_op *op;

	pthread_mutex_lock(&http->lock);
	for (int lane = 0; lane < LANES; lane++)
		while ((op = TAILQ_FIRST(&http->queued[lane]))) {
			TAILQ_REMOVE(&http->queued[lane], op, link);
			kv_done_add(&http->done, op, status);
		}
	pthread_mutex_unlock(&http->lock);
}

/* A request has ended. */
static void took(struct transfer *t, CURLcode code)
{
	const int r = kv_request_result(&t->request, code);
	const bool unreached =
		!t->request.x.limit_ms && kv_request_is_unreached(code);
	struct http *http = t->http;

	/* Not after the first: that may be one connection's bad luck. */
	if (unreached && http->unreached)
		fail_queued(http, r);
	http->unreached = unreached;
	t->request.x.step++;
	t->request.x.op->answer = (unsigned)kv_request_status(&t->request);
	if (t->request.x.op != &http->probe)
		kv_request_end(&t->request, http->multi);
	go_on(t, r);
}

/* ---- the thread ---- */

static enum lane lane_of(const struct kv_remote_op *op)
{
	return op->call == KV_REMOTE_EXISTS || op->call == KV_REMOTE_REMOVE
		       ? SMALL
		       : LARGE;
}

static struct kv_remote_op *take_queued(struct http *http, enum lane lane)
{
	struct kv_remote_op *op;

	pthread_mutex_lock(&http->lock);
	op = http->stop ? NULL : TAILQ_FIRST(&http->queued[lane]);
	if (op) {
		TAILQ_REMOVE(&http->queued[lane], op, link);
		op->under_way = true;
	}
	pthread_mutex_unlock(&http->lock);
	return op;
}

/* While nobody is reached, one asks for all: each try may cost a thread that
 * asks for the server's name. */
static void begin_queued(struct http *http)
{
	for (unsigned i = 0; i < TRANSFERS; i++) {
		struct transfer *t = &http->transfers[i];
		struct kv_remote_op *op;

		while (!t->request.x.op &&
		       !(http->unreached && http->active > 0)) {
			op = take_queued(http, i < PER_LANE ? SMALL : LARGE);
			if (!op)
				break;
			begin(t, op);
		}
	}
}

/* At the end all of them end at once. */
static void end_cancelled(struct http *http)
{
	bool cancelled[TRANSFERS] = {false}, any, stop;

	pthread_mutex_lock(&http->lock);
	stop = http->stop;
	any = http->cancels || stop;
	for (unsigned i = 0; any && i < TRANSFERS; i++) {
		struct kv_remote_op *op = http->transfers[i].request.x.op;

		if (op) {
			cancelled[i] = op->cancelled || stop;
			op->cancelled = false; /* it may go on to clean up */
		}
	}
	http->cancels = false;
	pthread_mutex_unlock(&http->lock);
	for (unsigned i = 0; any && i < TRANSFERS; i++) {
		if (cancelled[i] && stop)
			end(&http->transfers[i], -ECANCELED);
		else if (cancelled[i])
			break_off(&http->transfers[i]);
	}
}

static void take_ended(struct http *http)
{
	CURLMsg *message;
	int left;

	while ((message = curl_multi_info_read(http->multi, &left))) {
		const CURLcode code = message->data.result;
		char *t = NULL;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
		took((struct transfer *)(void *)t, code);
	}
}

static bool is_stopped(struct http *http)
{
	bool stop;

	pthread_mutex_lock(&http->lock);
	stop = http->stop;
	pthread_mutex_unlock(&http->lock);
	return stop;
}

static void *run(void *arg)
{
	struct http *http = arg;
	int running;

	while (!is_stopped(http)) {
		curl_multi_perform(http->multi, &running);
		take_ended(http);
		end_cancelled(http);
		begin_queued(http);
		/* What has just begun does not let it wait. */
		curl_multi_poll(http->multi, NULL, 0, IDLE_MS, NULL);
	}
	end_cancelled(http);
	pthread_mutex_lock(&http->lock);
	http->running = false;
	pthread_cond_signal(&http->ended);
	pthread_mutex_unlock(&http->lock);
	return NULL;
}

/* ---- the table ---- */

void kv_http_submit(void *backend, struct kv_remote_op *const *ops, size_t n)
{
	struct http *http = backend;

	pthread_mutex_lock(&http->lock);
	for (size_t i = 0; i < n; i++) {
		ops[i]->cancelled = ops[i]->under_way = false;
		TAILQ_INSERT_TAIL(&http->queued[lane_of(ops[i])], ops[i], link);
	}
	pthread_mutex_unlock(&http->lock);
	curl_multi_wakeup(http->multi);
}

static bool is_queued_locked(const struct http *http,
			     const struct kv_remote_op *op)
{
	struct kv_remote_op *queued;

	TAILQ_FOREACH(queued, &http->queued[lane_of(op)], link)
		if (queued == op)
			return true;
	return false;
}

void kv_http_cancel(void *backend, struct kv_remote_op *op)
{
	struct http *http = backend;
	bool wake = false;

	pthread_mutex_lock(&http->lock);
	if (op->under_way) {
		wake = http->cancels = op->cancelled = true;
	} else if (is_queued_locked(http, op)) {
		TAILQ_REMOVE(&http->queued[lane_of(op)], op, link);
		kv_done_add(&http->done, op, -ECANCELED);
	}
	pthread_mutex_unlock(&http->lock);
	if (wake)
		curl_multi_wakeup(http->multi);
}

int kv_http_fd(void *backend)
{
	return ((struct http *)backend)->done.event;
}

size_t kv_http_reap(void *backend, struct kv_remote_op **ret_ops, size_t max)
{
	struct http *http = backend;
	size_t n;

	pthread_mutex_lock(&http->lock);
	n = kv_done_reap(&http->done, ret_ops, max);
	pthread_mutex_unlock(&http->lock);
	return n;
}

static void http_free(struct http *http)
{
	if (!http)
		return;
	curl_multi_cleanup(http->multi);
	kv_done_fini(&http->done);
	pthread_mutex_destroy(&http->lock);
	pthread_cond_destroy(&http->ended);
	kv_site_free(http->site);
	free(http);
}

int kv_http_close(void *backend)
{
	struct http *http = backend;
	struct timespec until;
	bool hangs;
	int r = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_NS / 1000000000u;
	pthread_mutex_lock(&http->lock);
	http->stop = true;
	curl_multi_wakeup(http->multi);
	while (http->running && r == 0)
		r = pthread_cond_timedwait(&http->ended, &http->lock, &until);
	hangs = http->running;
	pthread_mutex_unlock(&http->lock);
	if (hangs)
		return -EBUSY;
	if (http->thread)
		pthread_join(http->thread, NULL);
	http_free(http);
	return 0;
}

/* ---- open ---- */

static void init_libcurl(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

static int init(struct http *http)
{
	int r = kv_done_init(&http->done);

	if (r < 0)
		return r;
	http->multi = curl_multi_init();
	if (!http->multi)
		return -ENOMEM;
	curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)TRANSFERS);
	for (unsigned i = 0; i < TRANSFERS; i++) {
		http->transfers[i].http = http;
		http->transfers[i].request.x.site = http->site;
		http->transfers[i].request.dialect = http->dialect;
	}
	http->running = true;
	r = kv_thread_start(&http->thread, "kvfs-http", run, http);
	http->running = r == 0;
	return r;
}

/* Ask the site whether it is there. */
static int probe(struct http *http)
{
	struct kv_remote_op *op = &http->probe;
	struct pollfd fd = {http->done.event, POLLIN, 0};

	op->call = KV_REMOTE_EXISTS;
	kv_http_submit(http, &op, 1);
	if (poll(&fd, 1, PROBE_MS) != 1 || kv_http_reap(http, &op, 1) != 1)
		return -ETIMEDOUT;
	return op->status;
}

int kv_http_open(const struct kv_http_dialect *dialect, struct kv_site *site,
		 void **ret_backend, char **ret_why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct http *http = calloc(1, sizeof(*http));
	int r;

	*ret_why = NULL;
	if (!http) {
		kv_site_free(site);
		return -ENOMEM;
	}
	pthread_once(&once, init_libcurl);
	pthread_mutex_init(&http->lock, NULL);
	pthread_cond_init(&http->ended, NULL);
	for (int lane = 0; lane < LANES; lane++)
		TAILQ_INIT(&http->queued[lane]);
	http->dialect = dialect;
	http->site = site;
	r = init(http);
	if (r == 0)
		r = probe(http);
	if (r < 0) {
		kv_why(ret_why, r, "%s: %s", site->base,
		       http->why[0] ? http->why : strerror(-r));
		kv_http_close(http);
		return r;
	}
	*ret_backend = http;
	return 0;
}
