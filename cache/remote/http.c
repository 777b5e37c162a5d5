/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - operations on objects that are one or more requests to a web server.
 *
 * One thread makes all of them, by libcurl, which never waits; connections stay
 * for the next request.  What an answer may do is bounded: redirects are not
 * followed, a long header or a body that is longer than it should be ends it.
 *
 * OWNS      the thread, its transfers, the site; operations from submit to reap.
 *
 * INVARIANTS
 *   (1) An operation is queued, under way in one transfer, or done.
 *   (2) The eventfd's count is not 0 while any is done.
 *   (3) A transfer has an easy handle while a request is made, and libcurl
 *       touches the operation's memory only then.
 *
 * LOCKING   http->lock for the queues and flags; none during calls of libcurl.
 *           All else is the thread's.
 */
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "cache/remote/http.h"
#include "common/thread.h"

/* Answers that are small need not wait for those that are large. */
enum lane { SMALL, LARGE, LANES };

#define PER_LANE 32u
#define TRANSFERS (LANES * PER_LANE)
#define CONNECT_MS 2000l
#define EXPECT_MS 100l /* for a server's leave to send what is large */
#define PROBE_MS 3000
#define IDLE_MS 60000
#define BUFFER (512l << 10)
#define HEADERS_MAX 65536u
#define PAGE_MAX 65536u		/* of an answer that tells what is wrong */
#define PATIENCE_NS 1000000000u /* at the end */

struct transfer {
	struct http *http;    /* fixed */
	CURL *easy;	      /* of one request; NULL: none */
	struct kv_exchange x; /* x.op NULL: free */
	struct curl_slist *headers;
	uint64_t sent, received, header_bytes;
	int verdict; /* why the answer was cut */
	char error[CURL_ERROR_SIZE];
};

struct http {
	const struct kv_http_dialect *dialect; /* fixed, as are these */
	struct kv_site *site;
	CURLM *multi;
	int event;
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t ended;
	struct kv_remote_ops queued[LANES], done; /* lock, as are these */
	bool running, stop, cancels;

	struct transfer transfers[TRANSFERS]; /* the thread's, as are these */
	unsigned active;
	bool unreached; /* the last try: now one at a time */
	struct kv_remote_op probe;
	char why[CURL_ERROR_SIZE]; /* the probe failed */
};

/* ---- statuses ---- */

/* The one place where the numbers of HTTP become ours. */
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

/* And those of libcurl. */
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

/* Nobody was there: what else is asked will hardly fare better. */
static bool is_unreached(CURLcode code)
{
	return code == CURLE_COULDNT_RESOLVE_HOST ||
	       code == CURLE_COULDNT_CONNECT ||
	       code == CURLE_OPERATION_TIMEDOUT;
}

static long status_of(const struct transfer *t)
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

/* Its headers have come: whether its body is what was asked for. */
static int check_headers(struct transfer *t)
{
	const bool noted = t->http->dialect->note_header;
	struct kv_exchange *x = &t->x;
	curl_off_t length = -1;
	int r = 0;

	if (x->wants == KV_ANSWER_NOTHING)
		return 0;
	if (status_of(t) != 200)
		return -EPROTO;
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
	const long status = status_of(t);

	(void)one;
	t->header_bytes += n;
	if (t->header_bytes > HEADERS_MAX)
		t->verdict = -EPROTO;
	else if ((line[0] == '\r' || line[0] == '\n') && status >= 200 &&
		 status < 300)
		t->verdict = check_headers(t);
	return t->verdict < 0 ? 0 : n;
}

/* Where the next @n bytes belong; NULL: nowhere.  *@ret_r < 0: there are none. */
static uint8_t *place(struct transfer *t, size_t n, int *ret_r)
{
	struct kv_exchange *x = &t->x;
	const long status = status_of(t);
	uint64_t at = t->received, end = at + n;

	*ret_r = 0;
	if (status != 200 || x->wants == KV_ANSWER_NOTHING) {
		if (end > PAGE_MAX)
			*ret_r = errno_of_status(status);
		/* All that was wanted has come. */
		if (end > PAGE_MAX && *ret_r == 0)
			*ret_r = -EPROTO;
		return NULL;
	}
	if (x->wants == KV_ANSWER_NOTE) {
		x->note_n = end;
		*ret_r = end > KV_OBJECT_NOTE_MAX ? -EBADMSG : 0;
		return (uint8_t *)x->note + at;
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

/* A connection that had been left open was closed: once more on another. */
static int on_rewind(void *arg, curl_off_t at, int whence)
{
	struct transfer *t = arg;

	if (whence != SEEK_SET || at < 0 || (uint64_t)at > t->x.body_n)
		return CURL_SEEKFUNC_FAIL;
	t->sent = (uint64_t)at;
	return CURL_SEEKFUNC_OK;
}

/* ---- a request ---- */

void kv_http_ask(struct kv_exchange *x, const char *method, const char *suffix)
{
	x->method = method;
	/* KV_URL_MAX has room for every name. */
	snprintf(x->url, sizeof(x->url), "%s", x->site->base);
	kv_site_encode(x->url, sizeof(x->url), x->op->name);
	kv_site_encode(x->url, sizeof(x->url), suffix);
}

static CURLcode set_way(const struct transfer *t)
{
	static const struct {
		CURLoption option;
		long value;
	} options[] = {
		{CURLOPT_NOSIGNAL, 1},
		{CURLOPT_QUICK_EXIT, 1}, /* wait for no resolver */
		{CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS},
		{CURLOPT_EXPECT_100_TIMEOUT_MS, EXPECT_MS},
		{CURLOPT_FOLLOWLOCATION, 0},
		{CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1},
		{CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2},
		{CURLOPT_SSL_VERIFYPEER, 1},
		{CURLOPT_SSL_VERIFYHOST, 2},
		{CURLOPT_PATH_AS_IS, 1},
		{CURLOPT_BUFFERSIZE, BUFFER},
		{CURLOPT_UPLOAD_BUFFERSIZE, BUFFER},
	};
	CURLcode code = CURLE_OK;

	for (size_t i = 0; i < KV_ARRAY_LEN(options) && code == CURLE_OK; i++)
		code = curl_easy_setopt(t->easy, options[i].option,
					options[i].value);
	if (code == CURLE_OK)
		code = curl_easy_setopt(t->easy, CURLOPT_PROTOCOLS_STR,
					"http,https");
	/* Not that of the environment. */
	if (code == CURLE_OK)
		code = curl_easy_setopt(t->easy, CURLOPT_PROXY, "");
	if (code == CURLE_OK)
		code = curl_easy_setopt(t->easy, CURLOPT_USERAGENT,
					"kvfs/" KV_VERSION);
	if (code == CURLE_OK && t->http->site->ca)
		code = curl_easy_setopt(t->easy, CURLOPT_CAINFO,
					t->http->site->ca);
	return code;
}

static void set_calls(struct transfer *t)
{
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
}

static int set_headers(struct transfer *t)
{
	for (size_t i = 0; i < KV_HTTP_HEADERS; i++) {
		struct curl_slist *longer;

		if (!t->x.headers[i][0])
			continue;
		longer = curl_slist_append(t->headers, t->x.headers[i]);
		if (!longer)
			return -ENOMEM;
		t->headers = longer;
	}
	curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
	return 0;
}

static CURLcode set_method(struct transfer *t)
{
	const struct kv_exchange *x = &t->x;
	const bool head = strcmp(x->method, "HEAD") == 0;
	const bool put = strcmp(x->method, "PUT") == 0;

	if (head)
		curl_easy_setopt(t->easy, CURLOPT_NOBODY, 1l);
	else if (put)
		curl_easy_setopt(t->easy, CURLOPT_UPLOAD, 1l);
	else if (strcmp(x->method, "GET") != 0)
		curl_easy_setopt(t->easy, CURLOPT_CUSTOMREQUEST, x->method);
	curl_easy_setopt(t->easy, CURLOPT_INFILESIZE_LARGE,
			 put ? (curl_off_t)x->body_n : (curl_off_t)-1);
	return curl_easy_setopt(t->easy, CURLOPT_URL, x->url);
}

/* Who asks. */
static CURLcode set_user(struct transfer *t)
{
	const struct kv_site *site = t->http->site;
	CURLcode code = t->http->dialect->authorize(t->easy, site);

	if (code == CURLE_OK)
		code = curl_easy_setopt(t->easy, CURLOPT_USERNAME, site->user);
	if (code == CURLE_OK)
		code = curl_easy_setopt(t->easy, CURLOPT_PASSWORD,
					site->secret);
	return code;
}

/*
 * A new handle each time: one that was used counts how often a connection that
 * was kept turned out to be closed, and gives up after some; and in libcurl 7.88
 * an answer whose first header is folded has it read headers of the one before,
 * which are freed.
 */
static CURLcode set_request(struct transfer *t)
{
	CURLcode code;

	t->easy = curl_easy_init();
	if (!t->easy)
		return CURLE_OUT_OF_MEMORY;
	set_calls(t);
	code = set_way(t);
	if (code == CURLE_OK && t->http->site->user)
		code = set_user(t);
	return code == CURLE_OK ? set_method(t) : code;
}

static void forget_request(struct transfer *t)
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
	for (size_t i = 0; i < KV_HTTP_HEADERS; i++)
		x->headers[i][0] = '\0';
	t->sent = t->received = t->header_bytes = 0;
	t->verdict = 0;
	t->error[0] = '\0';
}

/* Make the request that is prepared. */
static int start_request(struct transfer *t)
{
	int r = errno_of_code(set_request(t));

	if (r == 0)
		r = set_headers(t);
	if (r == 0 && curl_multi_add_handle(t->http->multi, t->easy))
		r = -EIO;
	return r;
}

/* ---- an operation ---- */

static void done_locked(struct http *http, struct kv_remote_op *op, int status)
{
	kv_assert_locked(&http->lock);
	op->under_way = false;
	op->status = status;
	TAILQ_INSERT_TAIL(&http->done, op, link);
	eventfd_write(http->event, 1);
}

static void end(struct transfer *t, int status)
{
	struct http *http = t->http;
	struct kv_remote_op *op = kv_steal(t->x.op);

	if (op == &http->probe && status < 0)
		snprintf(http->why, sizeof(http->why), "%s", t->error);
	forget_request(t);
	http->active--;
	pthread_mutex_lock(&http->lock);
	done_locked(http, op, status);
	pthread_mutex_unlock(&http->lock);
}

/* Its last request ended with @r: make the next, or end it. */
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
		r = start_request(t);
		if (r == 0)
			return;
	}
	end(t, r);
}

static void begin(struct transfer *t, struct kv_remote_op *op)
{
	forget_request(t);
	t->x.op = op;
	t->x.step = 0;
	t->x.first = 0;
	t->http->active++;
	go_on(t, 0);
}

static int result_of(struct transfer *t, CURLcode code)
{
	const struct kv_exchange *x = &t->x;
	const long status = status_of(t);

	if (t->verdict < 0)
		return t->verdict;
	/* It has said what is wrong, however it went on. */
	if (status >= 300)
		return errno_of_status(status);
	if (code != CURLE_OK)
		return errno_of_code(code);
	if (x->wants == KV_ANSWER_OBJECT && t->received != x->op->length)
		return -EBADMSG;
	return errno_of_status(status);
}

static void fail_queued(struct http *http, int status)
{
	struct kv_remote_op *op;

	pthread_mutex_lock(&http->lock);
	for (int lane = 0; lane < LANES; lane++)
		while ((op = TAILQ_FIRST(&http->queued[lane]))) {
			TAILQ_REMOVE(&http->queued[lane], op, link);
			done_locked(http, op, status);
		}
	pthread_mutex_unlock(&http->lock);
}

/* A request has ended. */
static void took(struct transfer *t, CURLcode code)
{
	const int r = result_of(t, code);
	const bool unreached = is_unreached(code);
	struct http *http = t->http;

	/* Not after the first: that may be one connection's bad luck. */
	if (unreached && http->unreached)
		fail_queued(http, r);
	http->unreached = unreached;
	t->x.step++;
	if (t->x.op != &http->probe)
		forget_request(t);
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

		while (!t->x.op && !(http->unreached && http->active > 0)) {
			op = take_queued(http, i < PER_LANE ? SMALL : LARGE);
			if (!op)
				break;
			begin(t, op);
		}
	}
}

static void end_cancelled(struct http *http)
{
	bool cancelled[TRANSFERS] = {false}, any;

	pthread_mutex_lock(&http->lock);
	any = http->cancels || http->stop;
	for (unsigned i = 0; any && i < TRANSFERS; i++)
		if (http->transfers[i].x.op)
			cancelled[i] = http->transfers[i].x.op->cancelled ||
				       http->stop;
	http->cancels = false;
	pthread_mutex_unlock(&http->lock);
	for (unsigned i = 0; any && i < TRANSFERS; i++) {
		struct transfer *t = &http->transfers[i];

		if (cancelled[i])
			end(t, -ECANCELED);
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
		done_locked(http, op, -ECANCELED);
	}
	pthread_mutex_unlock(&http->lock);
	if (wake)
		curl_multi_wakeup(http->multi);
}

int kv_http_fd(void *backend)
{
	return ((struct http *)backend)->event;
}

size_t kv_http_reap(void *backend, struct kv_remote_op **ret_ops, size_t max)
{
	struct http *http = backend;
	struct kv_remote_op *op;
	eventfd_t count;
	size_t n = 0;

	pthread_mutex_lock(&http->lock);
	while (n < max && (op = TAILQ_FIRST(&http->done))) {
		TAILQ_REMOVE(&http->done, op, link);
		ret_ops[n++] = op;
	}
	if (TAILQ_EMPTY(&http->done))
		eventfd_read(http->event, &count);
	pthread_mutex_unlock(&http->lock);
	return n;
}

static void http_free(struct http *http)
{
	if (!http)
		return;
	curl_multi_cleanup(http->multi);
	if (http->event >= 0)
		close(http->event);
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
	int r;

	http->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (http->event < 0)
		return -errno;
	http->multi = curl_multi_init();
	if (!http->multi)
		return -ENOMEM;
	curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)TRANSFERS);
	for (unsigned i = 0; i < TRANSFERS; i++) {
		http->transfers[i].http = http;
		http->transfers[i].x.site = http->site;
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
	struct pollfd fd = {http->event, POLLIN, 0};

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
	TAILQ_INIT(&http->done);
	http->dialect = dialect;
	http->site = site;
	r = init(http);
	if (r == 0)
		r = probe(http);
	if (r < 0) {
		if (asprintf(ret_why, "%s: %s", site->base,
			     http->why[0] ? http->why : strerror(-r)) < 0)
			*ret_why = NULL;
		kv_http_close(http);
		return r;
	}
	*ret_backend = http;
	return 0;
}
