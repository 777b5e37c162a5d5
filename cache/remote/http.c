/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - a backend on a web server.
 *
 * One thread makes all requests with libcurl, which never waits; connections are kept
 * for the next request.  Answers are bounded: redirects are not followed, and a long
 * header, or a body that is longer than it should be, is cut off.
 *
 * OWNS      the thread, its transfers, the site; operations from submit to reap.
 *
 * INVARIANTS
 *   (1) An operation is queued, in flight in one transfer, or done.
 *   (2) libcurl uses the operation's memory only while its transfer has a handle.
 *
 * LOCKING   http->lock for the queues and flags; none during calls of libcurl.
 *           All else is the thread's.
 */
#include <poll.h>
#include <stdio.h>

#include "cache/remote/http.h"
#include "common/thread.h"
#include "common/bytes.h"

#define CONNECT_MS 2000l
#define EXPECT_MS 100l /* for "100 Continue" */
#define BUFFER_MIN (16l << 10)
#define BUFFER_MAX (512l << 10)
#define SECOND_NS UINT64_C(1000000000)
#define HEADERS_MAX 65536u
#define PAGE_MAX 65536u /* bytes of a page that is skipped */

/* Small answers do not wait for large ones. */
enum lane { SMALL, LARGE, LANES };

/* As many as the tier has in flight: requests that the server does not answer take no
 * place of others. */
#define PER_LANE 128u
#define TRANSFERS (LANES * PER_LANE)
#define PROBE_MS 3000
#define IDLE_MS 60000
#define PATIENCE_NS 1000000000u /* at the end */

/* A place for one operation, and its current request. */
struct transfer {
	struct http *http;    /* fixed */
	struct kv_exchange x; /* x.op NULL: free */
	CURL *easy;	      /* while a request is made */
	struct curl_slist *headers;
	uint64_t sent, received, header_bytes;
	int verdict; /* status with which the answer was cut off */
	char error[CURL_ERROR_SIZE];
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
	bool unreached; /* by the last request: begin one at a time */
	/* When an answer was last damaged.  A damaged answer may belong to another
	 * request, as may all others on that connection.  0: never. */
	uint64_t damaged_ns;
	struct kv_remote_op probe;
	char why[CURL_ERROR_SIZE]; /* of the probe */
};

/* ---- statuses ---- */

/* Return the errno of an HTTP status. */
static int errno_of_status(long status)
{
	switch (status) {
	case 401:
	case 403:
	case 407:
		return -EACCES;
	case 404:
	case 410:
		return -ENOENT;
	case 405:
	case 501:
		return -EOPNOTSUPP;
	case 409:
	case 423:
	case 429:
	case 503:
		return -EBUSY;
	case 412:
		return -EEXIST;
	case 413:
		return -EFBIG;
	case 507:
		return -ENOSPC;
	default:
		return status >= 200 && status < 300 ? 0
		       : status >= 400		     ? -EIO
						     : -EPROTO;
	}
}

/* Return the errno of a libcurl code. */
static int errno_of_code(CURLcode code)
{
	switch (code) {
	case CURLE_OK:
		return 0;
	case CURLE_COULDNT_RESOLVE_HOST:
		return -EHOSTUNREACH;
	case CURLE_COULDNT_CONNECT:
		return -ECONNREFUSED;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	case CURLE_PARTIAL_FILE:
	case CURLE_GOT_NOTHING:
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
		return -ECONNRESET;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
		return -EACCES;
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_WEIRD_SERVER_REPLY:
		return -EPROTO;
	default:
		return -EIO;
	}
}

static long transfer_status(const struct transfer *t)
{
	long status = 0;

	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

/* ---- an answer, as it comes ---- */

static int note_of_header(struct transfer *t)
{
	struct kv_exchange *x = &t->x;
	struct curl_header *header;
	size_t n;

	if (curl_easy_header(t->easy, t->http->dialect->note_header, 0,
			     CURLH_HEADER, -1, &header) != CURLHE_OK ||
	    header->amount != 1)
		return -EBADMSG;
	n = strlen(header->value);
	if (n + 1 > KV_OBJECT_NOTE_MAX)
		return -EBADMSG;
	memcpy(x->note, header->value, n);
	x->note[n] = '\n';
	x->note_n = n + 1;
	return kv_object_read_note(x->op, x->note, x->note_n);
}

/* All headers have come: check that the body will be what was asked for. */
static int check_headers(struct transfer *t)
{
	const bool noted = t->http->dialect->note_header;
	struct kv_exchange *x = &t->x;
	curl_off_t length = -1;
	int r = 0;

	if (x->wants == KV_ANSWER_NOTHING)
		return 0;
	if (transfer_status(t) != 200)
		return -EPROTO;
	if (x->wants == KV_ANSWER_PAGE)
		return 0;
	if (noted)
		r = note_of_header(t);
	if (r < 0 || (x->wants == KV_ANSWER_NOTE && !noted))
		return r;
	if (x->wants == KV_ANSWER_OBJECT && x->op->length > x->op->room)
		return -EFBIG;
	curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	return length >= 0 && (uint64_t)length != x->op->length ? -EBADMSG : 0;
}

static size_t on_header(char *line, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;
	const long status = transfer_status(t);

	(void)one;
	t->header_bytes += n;
	if (t->header_bytes > HEADERS_MAX)
		t->verdict = -EPROTO;
	else if ((line[0] == '\r' || line[0] == '\n') && status >= 200 &&
		 status < 300)
		t->verdict = check_headers(t);
	return t->verdict < 0 ? 0 : n;
}

/* Return where to put the next @n bytes, or NULL: skip them.  *@ret_r < 0: cut the
 * answer off. */
static uint8_t *place(struct transfer *t, size_t n, int *ret_r)
{
	struct kv_exchange *x = &t->x;
	const long status = transfer_status(t);
	uint64_t at = t->received, end = at + n;

	*ret_r = 0;
	if (status != 200 || x->wants == KV_ANSWER_NOTHING) {
		if (end > PAGE_MAX)
			*ret_r = errno_of_status(status);
		/* A success with such a long body is none. */
		if (end > PAGE_MAX && *ret_r == 0)
			*ret_r = -EPROTO;
		return NULL;
	}
	if (x->wants == KV_ANSWER_NOTE) {
		x->note_n = end;
		*ret_r = end > KV_OBJECT_NOTE_MAX ? -EBADMSG : 0;
		return (uint8_t *)x->note + at;
	}
	if (x->wants == KV_ANSWER_PAGE) {
		x->op->length = end;
		*ret_r = end > x->op->room ? -EFBIG : 0;
		return x->op->data + at;
	}
	*ret_r = end > x->op->length ? -EBADMSG : 0;
	return x->op->data + at;
}

static size_t on_body(char *data, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;
	uint8_t *to = place(t, n, &t->verdict);

	(void)one;
	if (t->verdict < 0)
		return 0;
	if (to)
		memcpy(to, data, n);
	t->received += n;
	return n;
}

static size_t on_send(char *room, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;

	(void)one;
	n = KV_MIN(n, t->x.body_n - t->sent);
	memcpy(room, (const uint8_t *)t->x.body + t->sent, n);
	t->sent += n;
	return n;
}

/* libcurl sends the body again when a kept connection turned out to be closed. */
static int on_rewind(void *arg, curl_off_t at, int whence)
{
	struct transfer *t = arg;

	if (whence != SEEK_SET || at < 0 || (uint64_t)at > t->x.body_n)
		return CURL_SEEKFUNC_FAIL;
	t->sent = (uint64_t)at;
	return CURL_SEEKFUNC_OK;
}

/* ---- a request ---- */

/* Buffers of a request: as large as its bytes, within bounds. */
static long buffer_for(uint64_t bytes)
{
	return bytes < (uint64_t)BUFFER_MIN   ? BUFFER_MIN
	       : bytes > (uint64_t)BUFFER_MAX ? BUFFER_MAX
					      : (long)bytes;
}

/* Set all that may fail. */
static CURLcode set_options(const struct transfer *t)
{
	const struct kv_site *site = t->x.site;
	const uint64_t received =
		t->x.wants == KV_ANSWER_OBJECT ? t->x.op->room : 0;
	const struct {
		CURLoption option;
		long value;
	} longs[] = {
		{CURLOPT_NOSIGNAL, 1},
		{CURLOPT_QUICK_EXIT, 1}, /* do not wait for the resolver */
		{CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS},
		{CURLOPT_EXPECT_100_TIMEOUT_MS, EXPECT_MS},
		{CURLOPT_FOLLOWLOCATION, 0},
		{CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1},
		{CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2},
		{CURLOPT_SSL_VERIFYPEER, 1},
		{CURLOPT_SSL_VERIFYHOST, 2},
		{CURLOPT_PATH_AS_IS, 1},
		{CURLOPT_BUFFERSIZE, buffer_for(received)},
		{CURLOPT_UPLOAD_BUFFERSIZE, buffer_for(t->x.body_n)},
		{CURLOPT_TIMEOUT_MS, t->x.limit_ms},
	};
	const struct {
		CURLoption option;
		const char *value; /* NULL: not set */
	} texts[] = {
		{CURLOPT_PROTOCOLS_STR, "http,https"},
		{CURLOPT_PROXY, ""}, /* not that of the environment */
		{CURLOPT_USERAGENT, "kvfs/" KV_VERSION},
		{CURLOPT_CAINFO, site->ca},
		{CURLOPT_USERNAME, site->user},
		{CURLOPT_PASSWORD, site->user ? site->secret : NULL},
		{CURLOPT_URL, t->x.url},
	};
	CURLcode code = site->user ? t->http->dialect->authorize(t->easy, site)
				   : CURLE_OK;

	for (size_t i = 0; i < KV_ARRAY_LEN(longs) && code == CURLE_OK; i++)
		code = curl_easy_setopt(t->easy, longs[i].option,
					longs[i].value);
	for (size_t i = 0; i < KV_ARRAY_LEN(texts) && code == CURLE_OK; i++)
		if (texts[i].value)
			code = curl_easy_setopt(t->easy, texts[i].option,
						texts[i].value);
	return code;
}

/*
 * Begin the request that the exchange has prepared.  -ENOMEM, -EIO: transfer_end() is
 * needed all the same.
 *
 * Each request has a new handle.  A used one counts how often a connection that was
 * kept turned out to be closed, and gives up after some; and in libcurl 7.88 an answer
 * whose first header is folded makes it read freed headers of the answer before.
 */
static int transfer_begin(struct transfer *t)
{
	const uint64_t damaged_ns = t->http->damaged_ns;
	const uint64_t age = kv_now_ns() - damaged_ns;
	const bool fresh = age < 2 * SECOND_NS;
	const bool put = strcmp(t->x.method, "PUT") == 0;
	struct curl_slist *longer;
	int r;

	t->easy = curl_easy_init();
	if (!t->easy)
		return -ENOMEM;
	curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
	curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->error);
	curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
	curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(t->easy, CURLOPT_READFUNCTION, on_send);
	curl_easy_setopt(t->easy, CURLOPT_READDATA, t);
	curl_easy_setopt(t->easy, CURLOPT_SEEKFUNCTION, on_rewind);
	curl_easy_setopt(t->easy, CURLOPT_SEEKDATA, t);
	r = errno_of_code(set_options(t));
	if (r < 0)
		return r;
	if (put)
		curl_easy_setopt(t->easy, CURLOPT_UPLOAD, 1l);
	else if (strcmp(t->x.method, "HEAD") == 0)
		curl_easy_setopt(t->easy, CURLOPT_NOBODY, 1l);
	else if (strcmp(t->x.method, "GET") != 0)
		curl_easy_setopt(t->easy, CURLOPT_CUSTOMREQUEST, t->x.method);
	curl_easy_setopt(t->easy, CURLOPT_INFILESIZE_LARGE,
			 put ? (curl_off_t)t->x.body_n : (curl_off_t)-1);
	/* Use no connection from before the damaged answer.  libcurl counts the age of
	 * a connection in whole seconds. */
	if (damaged_ns) {
		curl_easy_setopt(t->easy, CURLOPT_FRESH_CONNECT, (long)fresh);
		curl_easy_setopt(t->easy, CURLOPT_FORBID_REUSE, (long)fresh);
		if (!fresh)
			curl_easy_setopt(t->easy, CURLOPT_MAXLIFETIME_CONN,
					 (long)(age / SECOND_NS) - 1);
	}
	for (size_t i = 0; i < KV_HTTP_HEADERS; i++) {
		if (!t->x.headers[i][0])
			continue;
		longer = curl_slist_append(t->headers, t->x.headers[i]);
		if (!longer)
			return -ENOMEM;
		t->headers = longer;
	}
	curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
	return curl_multi_add_handle(t->http->multi, t->easy) ? -EIO : 0;
}

/* End the request, done or not, and clear all that next() sets. */
static void transfer_end(struct transfer *t)
{
	struct kv_exchange *x = &t->x;

	if (t->easy) {
		curl_multi_remove_handle(t->http->multi, t->easy);
		curl_easy_cleanup(kv_steal(t->easy));
	}
	curl_slist_free_all(kv_steal(t->headers));
	x->method = NULL;
	x->body = NULL;
	x->body_n = 0;
	x->wants = KV_ANSWER_NOTHING;
	x->limit_ms = 0;
	for (size_t i = 0; i < KV_HTTP_HEADERS; i++)
		x->headers[i][0] = '\0';
	t->sent = t->received = t->header_bytes = 0;
	t->verdict = 0;
	t->error[0] = '\0';
}

/* Return the status of a request that libcurl has ended with @code. */
static int transfer_result(const struct transfer *t, CURLcode code)
{
	const struct kv_exchange *x = &t->x;
	const long status = transfer_status(t);

	if (t->verdict < 0)
		return t->verdict;
	/* A status of failure counts, however the answer ended. */
	if (status >= 300)
		return errno_of_status(status);
	if (code != CURLE_OK)
		return errno_of_code(code);
	if (x->wants == KV_ANSWER_OBJECT && t->received != x->op->length)
		return -EBADMSG;
	return errno_of_status(status);
}

static void transfer_why(const struct transfer *t, char *why, size_t room)
{
	const long status = t->easy ? transfer_status(t) : 0;

	if (t->header_bytes > HEADERS_MAX)
		snprintf(why, room, "its headers do not end");
	else if (t->error[0])
		snprintf(why, room, "%s", t->error);
	else if (status >= 300)
		snprintf(why, room, "%s (status %ld)",
			 status < 400 ? "it is said to be elsewhere"
				      : strerror(-errno_of_status(status)),
			 status);
	else
		*why = '\0';
}

static bool is_unreached(CURLcode code)
{
	return code == CURLE_COULDNT_RESOLVE_HOST ||
	       code == CURLE_COULDNT_CONNECT ||
	       code == CURLE_OPERATION_TIMEDOUT;
}

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
	struct kv_remote_op *op = kv_steal(t->x.op);

	if (op == &http->probe && status < 0)
		transfer_why(t, http->why, sizeof(http->why));
	if (status == -EBADMSG || status == -EPROTO)
		http->damaged_ns = kv_now_ns();
	transfer_end(t);
	http->active--;
	pthread_mutex_lock(&http->lock);
	kv_done_add(&http->done, op, status);
	pthread_mutex_unlock(&http->lock);
}

/* The last request ended with @r: begin the next one, or end the operation. */
static void go_on(struct transfer *t, int r)
{
	const struct kv_http_dialect *dialect = t->http->dialect;

	if (t->x.op == &t->http->probe) {
		if (t->x.step > 0) {
			end(t, r == -ENOENT && dialect->comes_by_put ? 0 : r);
			return;
		}
		dialect->probe(&t->x);
		r = KV_HTTP_ASK;
	} else {
		r = dialect->next(&t->x, r);
	}
	if (r == KV_HTTP_ASK) {
		r = transfer_begin(t);
		if (r == 0)
			return;
	}
	end(t, r);
}

/* End a cancelled operation, now or when it has cleaned up. */
static void break_off(struct transfer *t)
{
	const struct kv_http_dialect *dialect = t->http->dialect;

	transfer_end(t);
	if (!dialect->undo || dialect->undo(&t->x) != KV_HTTP_ASK ||
	    transfer_begin(t) < 0)
		end(t, -ECANCELED);
}

static void begin(struct transfer *t, struct kv_remote_op *op)
{
	transfer_end(t);
	t->x.op = op;
	t->x.step = 0;
	t->x.first = 0;
	t->x.part[0] = '\0';
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
	const int r = transfer_result(t, code);
	const bool unreached = !t->x.limit_ms && is_unreached(code);
	struct http *http = t->http;

	/* Not after one failure, which may be that of one connection. */
	if (unreached && http->unreached)
		fail_queued(http, r);
	http->unreached = unreached;
	t->x.step++;
	t->x.op->answer = (unsigned)transfer_status(t);
	if (t->x.op != &http->probe)
		transfer_end(t);
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

/* While no server is reached, begin one operation at a time: each may cost a thread
 * that resolves the server's name. */
static void begin_queued(struct http *http)
{
	for (unsigned i = 0; i < TRANSFERS; i++) {
		struct transfer *t = &http->transfers[i];
		struct kv_remote_op *op;

		while (!t->x.op && !(http->unreached && http->active > 0)) {
			op = take_queued(http, i < PER_LANE ? SMALL : LARGE);
			if (!op)
				break;
			begin(t, op);
		}
	}
}

/* End cancelled operations; at the end, all of them, at once. */
static void end_cancelled(struct http *http)
{
	bool cancelled[TRANSFERS] = {false}, any, stop;

	pthread_mutex_lock(&http->lock);
	stop = http->stop;
	any = http->cancels || stop;
	for (unsigned i = 0; any && i < TRANSFERS; i++) {
		struct kv_remote_op *op = http->transfers[i].x.op;

		if (op) {
			cancelled[i] = op->cancelled || stop;
			op->cancelled = false; /* op may go on to clean up */
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

static void *http_run(void *arg)
{
	struct http *http = arg;
	bool stop = false;
	int running;

	while (!stop) {
		curl_multi_perform(http->multi, &running);
		take_ended(http);
		end_cancelled(http);
		begin_queued(http);
		/* Does not wait for transfers that have just begun. */
		curl_multi_poll(http->multi, NULL, 0, IDLE_MS, NULL);
		pthread_mutex_lock(&http->lock);
		stop = http->stop;
		pthread_mutex_unlock(&http->lock);
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

void kv_http_cancel(void *backend, struct kv_remote_op *op)
{
	struct http *http = backend;
	const enum lane lane = lane_of(op);
	struct kv_remote_op *queued;
	bool wake;

	pthread_mutex_lock(&http->lock);
	wake = op->under_way;
	TAILQ_FOREACH(queued, &http->queued[lane], link)
		if (!wake && queued == op)
			break;
	if (wake) {
		http->cancels = op->cancelled = true;
	} else if (queued) {
		TAILQ_REMOVE(&http->queued[lane], op, link);
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

int kv_http_close(void *backend)
{
	struct http *http = backend;
	const uint64_t until = kv_now_ns() + PATIENCE_NS;
	bool hangs;
	int r = 0;

	pthread_mutex_lock(&http->lock);
	http->stop = true;
	curl_multi_wakeup(http->multi);
	while (http->running && r == 0)
		r = kv_cond_wait_until(&http->ended, &http->lock, until);
	hangs = http->running;
	pthread_mutex_unlock(&http->lock);
	if (hangs)
		return -EBUSY;
	if (http->thread)
		pthread_join(http->thread, NULL);
	curl_multi_cleanup(http->multi);
	kv_done_fini(&http->done);
	pthread_mutex_destroy(&http->lock);
	pthread_cond_destroy(&http->ended);
	kv_site_free(http->site);
	free(http);
	return 0;
}

/* ---- open ---- */

static void init_libcurl(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* Start the thread, and probe the site. */
static int start(struct http *http)
{
	struct kv_remote_op *op = &http->probe;
	struct pollfd fd = {.events = POLLIN};
	int r = kv_done_init(&http->done);

	if (r < 0)
		return r;
	http->multi = curl_multi_init();
	if (!http->multi)
		return -ENOMEM;
	curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)TRANSFERS);
	for (unsigned i = 0; i < TRANSFERS; i++) {
		http->transfers[i].http = http;
		http->transfers[i].x.site = http->site;
	}
	http->running = true;
	r = kv_thread_start(&http->thread, "kvfs-http", http_run, http);
	http->running = r == 0;
	if (r < 0)
		return r;
	op->call = KV_REMOTE_EXISTS;
	kv_http_submit(http, &op, 1);
	fd.fd = http->done.event;
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
	kv_cond_init(&http->ended);
	for (int lane = 0; lane < LANES; lane++)
		TAILQ_INIT(&http->queued[lane]);
	http->dialect = dialect;
	http->site = site;
	r = start(http);
	if (r < 0) {
		kv_why(ret_why, r, "%s: %s", site->base,
		       http->why[0] ? http->why : strerror(-r));
		kv_http_close(http);
		return r;
	}
	*ret_backend = http;
	return 0;
}
