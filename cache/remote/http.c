/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - a backend on a web server: requests by libcurl.
 *
 * One thread makes all requests with libcurl, which never waits; connections are kept
 * for the next request.  Answers are bounded: redirects are not followed, and a long
 * header, or a body that is longer than it should be, is cut off.
 *
 * OWNS      the thread, its transfers, the site.
 *
 * STATES    of a transfer: begun, requested, maybe waiting to connect again, ended.
 *           kv_web_next or kv_s3_next makes the requests.
 *
 * INVARIANTS
 *   (1) libcurl uses the operation's memory only while its transfer has a handle.
 *
 * LOCKING   http->ops has its own lock; all else belongs to the thread.
 */
#include <stdio.h>
#include <sys/socket.h>

#include "cache/remote/http.h"
#include "common/bytes.h"

#define TRANSFERS 256u
#define CONNECT_MS 2000l
#define EXPECT_MS 100l /* longest wait for "100 Continue" */
#define BUFFER_MIN (16l << 10)
#define BUFFER_MAX (128l << 10)
#define MS_NS UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)
#define REFUSED_MS 50
#define HEADERS_MAX 65536u
#define TEXT_MAX 65536u	    /* most bytes of an answer's text */
#define PAGE_MAX (4u << 20) /* most bytes of a page of a list */

/* An operation in flight, and its current request. */
struct transfer {
	struct http *http;
	struct kv_exchange x;
	CURL *easy; /* libcurl's handle; NULL: waits until again_ns */
	uint64_t sent, received, header_bytes;
	int verdict;   /* status of an answer that was cut off */
	int fd;	       /* new connection to a UNIX socket; -1: none */
	char line[64]; /* text of the HTTP status: "404 Not Found" */
	char error[CURL_ERROR_SIZE];
	uint64_t refused_ns; /* time of the first refused connection; 0: none */
	uint64_t again_ns;
	unsigned version; /* number of the credentials that the request uses */
	bool anew;  /* the operation was begun again, with new credentials */
	bool fresh; /* the request was repeated on a new connection */
	TAILQ_ENTRY(transfer) link;
};

struct http {
	struct kv_ops ops;    /* first member */
	CURLM *multi;	      /* constant */
	struct kv_site *site; /* owned by the thread, as are the next three */
	TAILQ_HEAD(, transfer) transfers;
	unsigned active;
	bool unreached; /* no server was reached: begin operations one by one */
};

/* ---- statuses ---- */

/* Return the status of an operation that an HTTP status of failure ends. */
static int errno_of(enum kv_remote_call call, long status)
{
	const bool reads = call == KV_REMOTE_GET || call == KV_REMOTE_HEAD;

	switch (status) {
	case 401:
		return -EPERM;
	case 403:
		return -EACCES;
	case 404:
	case 410:
		return -ENOENT;
	case 405: /* the server takes no PUT, but may serve objects */
		return reads		       ? -EOPNOTSUPP
		       : call == KV_REMOTE_PUT ? -ENOSPC
					       : -EACCES;
	case 413:
	case 507:
		return reads ? -EIO : -ENOSPC;
	default:
		return status >= 400 ? -EIO : -EPROTO;
	}
}

static long transfer_status(const struct transfer *t)
{
	long status = 0;

	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

/* Return the status of a request that libcurl has ended with @code. */
static int transfer_result(struct transfer *t, CURLcode code)
{
	struct kv_exchange *x = &t->x;
	struct kv_remote_op *op = x->op;
	curl_off_t n = 0;
	long error = 0;
	int r;

	x->status = transfer_status(t);
	if (t->verdict < 0)
		return t->verdict;
	/* An HTTP status of failure counts, even if the answer was cut off. */
	if (x->status >= 300) {
		curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &n);
		op->retry_after_ns =
			(uint64_t)KV_MIN(KV_MAX(n, 0), 3600) * SECOND_NS;
		r = kv_op_failed(op, errno_of(op->call, x->status), "%s",
				 t->line);
		return x->site->s3 ? kv_s3_judge(x, r) : r;
	}
	if (code == CURLE_COULDNT_CONNECT && x->site->socket) {
		curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &error);
		return kv_op_failed(op, -EIO, "%s: %s", x->site->socket,
				    strerror((int)error));
	}
	if (code != CURLE_OK)
		return kv_op_failed(op, -EIO, "%s",
				    t->error[0] ? t->error
						: curl_easy_strerror(code));
	if (x->status < 200)
		return kv_op_failed(op, -EPROTO, "not an answer of HTTP");
	if (x->object && t->received != op->length)
		return kv_op_failed(op, -EBADMSG,
				    "the body is shorter than announced");
	if (op->call == KV_REMOTE_HEAD) {
		curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T,
				  &n);
		op->length = (uint64_t)KV_MAX(n, 0);
	}
	return 0;
}

/* ---- an answer of the server, as it comes ---- */

/* All headers of an object have arrived: ask for memory. */
static int take_length(struct transfer *t)
{
	struct kv_remote_op *op = t->x.op;
	curl_off_t length = -1;

	if (transfer_status(t) != 200)
		return kv_op_failed(op, -EPROTO, "%s", t->line);
	curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	if (length < 0)
		return kv_op_failed(op, -EPROTO, "no Content-Length");
	if (length == 0)
		return kv_op_failed(op, -EBADMSG, "an empty object");
	return kv_op_room(&t->http->ops, op, (uint64_t)length);
}

static size_t on_header(char *line, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;
	const char *space = n > 5 && memcmp(line, "HTTP/", 5) == 0
				    ? memchr(line, ' ', n)
				    : NULL;

	(void)one;
	t->header_bytes += n;
	if (space) {
		snprintf(t->line, sizeof(t->line), "%.*s",
			 (int)(line + n - space - 1), space + 1);
		t->line[strcspn(t->line, "\r\n")] = '\0';
	}
	if (t->header_bytes > HEADERS_MAX)
		t->verdict = kv_op_failed(t->x.op, -EPROTO,
					  "the headers do not end");
	else if ((line[0] == '\r' || line[0] == '\n') && t->x.object &&
		 transfer_status(t) / 100 == 2)
		t->verdict = take_length(t);
	return t->verdict < 0 ? 0 : n;
}

static size_t on_body(char *data, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;
	struct kv_exchange *x = &t->x;
	struct kv_remote_op *op = x->op;
	const bool good = transfer_status(t) < 300;
	const uint64_t end = t->received + n;
	char *longer;

	(void)one;
	if (good && x->object) {
		if (end > op->length)
			t->verdict = kv_op_failed(op, -EBADMSG,
						  "the body is too long");
		else
			memcpy(op->data + t->received, data, n);
		atomic_fetch_add(&op->progress, n);
	} else if (end > (x->page ? PAGE_MAX : TEXT_MAX)) {
		if (!good) /* report the HTTP status of the answer */
			return 0;
		t->verdict =
			kv_op_failed(op, -EPROTO, "the answer does not end");
	} else if (!(longer = realloc(x->text, end + 1))) {
		t->verdict = -ENOMEM;
	} else {
		x->text = longer;
		memcpy(x->text + x->text_bytes, data, n);
		x->text_bytes = end;
		x->text[end] = '\0';
	}
	t->received = end;
	return t->verdict < 0 ? 0 : n;
}

static size_t on_send(char *room, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;
	const struct iovec *body = t->x.body;
	size_t done = 0;

	(void)one;
	for (uint64_t i = 0, at = t->sent; i < KV_ARRAY_LEN(t->x.body); i++) {
		const size_t skip = KV_MIN(at, body[i].iov_len);
		const size_t part = KV_MIN(n - done, body[i].iov_len - skip);

		if (part > 0)
			memcpy(room + done, (char *)body[i].iov_base + skip,
			       part);
		done += part;
		at -= skip;
	}
	t->sent += done;
	return done;
}

/* libcurl sends the body again if a kept connection turned out to be closed. */
static int on_rewind(void *arg, curl_off_t at, int whence)
{
	struct transfer *t = arg;

	t->sent = (uint64_t)at;
	return whence == SEEK_SET && at >= 0 ? CURL_SEEKFUNC_OK
					     : CURL_SEEKFUNC_FAIL;
}

/* ---- UNIX sockets ---- */

static curl_socket_t on_socket(void *arg, curlsocktype purpose,
			       struct curl_sockaddr *address)
{
	struct transfer *t = arg;

	(void)purpose;
	t->fd = socket(address->family, address->socktype | SOCK_CLOEXEC,
		       address->protocol);
	return t->fd;
}

/* Before the request is sent, check who listens on a new connection. */
static int on_connected(void *arg, char *address, char *own, int port,
			int own_port)
{
	struct transfer *t = arg;
	struct kv_remote_op *op = t->x.op;

	(void)address, (void)own, (void)port, (void)own_port;
	if (t->fd >= 0)
		t->verdict = kv_site_check_peer(t->x.site, t->fd, op->why,
						sizeof(op->why));
	return t->verdict < 0 ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

/* ---- a request ---- */

int kv_http_ask(struct kv_exchange *x, const char *method)
{
	static const char *const methods[KV_REMOTE_CALLS] = {
		[KV_REMOTE_HEAD] = "HEAD",
		[KV_REMOTE_GET] = "GET",
		[KV_REMOTE_PUT] = "PUT",
		[KV_REMOTE_DELETE] = "DELETE",
	};

	x->method = method ? method : methods[x->op->call];
	/* Names have no character with a special meaning in a URL. */
	snprintf(x->url, sizeof(x->url), "%s%s", x->site->base, x->op->name);
	memcpy(x->body, x->op->parts, sizeof(x->body));
	x->object = x->op->call == KV_REMOTE_GET;
	x->page = false;
	return KV_HTTP_ASK;
}

int kv_http_header(struct kv_exchange *x, const char *name, const char *value)
{
	char line[KV_SITE_TOKEN_MAX + 64];
	struct curl_slist *longer;

	snprintf(line, sizeof(line), "%s:%s%s", name, *value ? " " : "", value);
	longer = curl_slist_append(x->headers, line);
	if (longer)
		x->headers = longer;
	return longer ? 0 : -ENOMEM;
}

/* Set the options of the request. */
static CURLcode set_options(struct transfer *t)
{
	const struct kv_exchange *x = &t->x;
	const struct kv_site *site = x->site;
	const uint64_t bytes = x->body[0].iov_len + x->body[1].iov_len;
	CURLcode code = CURLE_OK;
	char provider[128];

#define SET(option, value)  \
	(code = code ? code \
		     : curl_easy_setopt(t->easy, CURLOPT_##option, value))
	SET(PRIVATE, t);
	SET(ERRORBUFFER, t->error);
	SET(HEADERFUNCTION, on_header);
	SET(HEADERDATA, t);
	SET(WRITEFUNCTION, on_body);
	SET(WRITEDATA, t);
	SET(READFUNCTION, on_send);
	SET(READDATA, t);
	SET(SEEKFUNCTION, on_rewind);
	SET(SEEKDATA, t);
	SET(NOSIGNAL, 1l);
	SET(FRESH_CONNECT, (long)t->fresh);
	SET(QUICK_EXIT, 1l); /* do not wait for the resolver */
	SET(CONNECTTIMEOUT_MS, CONNECT_MS);
	SET(EXPECT_100_TIMEOUT_MS, EXPECT_MS);
	SET(FOLLOWLOCATION, 0l);
	SET(HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	SET(SSL_VERIFYPEER, 1l);
	SET(SSL_VERIFYHOST, 2l);
	SET(PATH_AS_IS, 1l);
	SET(BUFFERSIZE, x->object ? BUFFER_MAX : BUFFER_MIN);
	SET(UPLOAD_BUFFERSIZE,
	    (long)KV_MAX(KV_MIN(bytes, BUFFER_MAX), BUFFER_MIN));
	SET(PROTOCOLS_STR, "http,https");
	SET(PROXY, ""); /* ignore the proxy of the environment */
	SET(USERAGENT, "kvfs/" KV_VERSION);
	SET(URL, x->url);
	SET(HTTPHEADER, x->headers);
	if (site->ca)
		SET(CAINFO, site->ca);
	if (site->user) {
		SET(USERNAME, site->user);
		SET(PASSWORD, site->secret);
	}
	if (site->user && site->s3) {
		snprintf(provider, sizeof(provider), "aws:amz:%s:s3",
			 site->region);
		SET(AWS_SIGV4, provider);
	} else if (site->user) {
		SET(HTTPAUTH, (long)CURLAUTH_BASIC);
	}
	if (site->socket) {
		SET(UNIX_SOCKET_PATH, site->socket);
		SET(OPENSOCKETFUNCTION, on_socket);
		SET(OPENSOCKETDATA, t);
		SET(PREREQFUNCTION, on_connected);
		SET(PREREQDATA, t);
	}
	if (strcmp(x->method, "PUT") == 0) {
		SET(UPLOAD, 1l);
		SET(INFILESIZE_LARGE, (curl_off_t)bytes);
	} else if (strcmp(x->method, "POST") == 0) {
		SET(POST, 1l);
		SET(POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
	} else if (strcmp(x->method, "HEAD") == 0) {
		SET(NOBODY, 1l);
	} else if (strcmp(x->method, "GET") != 0) {
		SET(CUSTOMREQUEST, x->method);
	}
#undef SET
	return code;
}

/*
 * Begin the request that the exchange has prepared.  -ENOMEM, -EIO.
 *
 * Each request has a new handle.  A used one counts how often a connection that was
 * kept turned out to be closed, and gives up after some; and in libcurl 7.88 it
 * reads freed headers of the last answer if the first header is folded.
 */
static int transfer_begin(struct transfer *t)
{
	struct kv_exchange *x = &t->x;

	free(kv_steal(x->text));
	x->text_bytes = 0;
	x->status = 0;
	t->sent = t->received = t->header_bytes = 0;
	t->verdict = 0;
	t->fd = -1;
	t->line[0] = t->error[0] = '\0';
	t->again_ns = 0;
	t->version = x->site->version;
	t->easy = curl_easy_init();
	if (!t->easy)
		return -ENOMEM;
	if (set_options(t) != CURLE_OK ||
	    curl_multi_add_handle(t->http->multi, t->easy) != CURLM_OK)
		return -ENOMEM;
	return 0;
}

static void drop_handle(struct transfer *t)
{
	if (!t->easy)
		return;
	curl_multi_remove_handle(t->http->multi, t->easy);
	curl_easy_cleanup(kv_steal(t->easy));
}

/* ---- an operation ---- */

static void end(struct transfer *t, int status)
{
	struct http *http = t->http;
	struct kv_remote_op *op = t->x.op;

	/* A PUT without its bucket or folder has failed. */
	if (op->call == KV_REMOTE_PUT && status == -ENOENT)
		status = -EIO;
	drop_handle(t);
	curl_slist_free_all(t->x.headers);
	free(t->x.text);
	free(t->x.made);
	TAILQ_REMOVE(&http->transfers, t, link);
	http->active--;
	free(t);
	kv_ops_end(&http->ops, op, status);
}

/* After a request that ended with @r begin the next, or end the operation. */
static void go_on(struct transfer *t, int r)
{
	struct kv_exchange *x = &t->x;

	drop_handle(t);
	curl_slist_free_all(kv_steal(x->headers));
	r = x->site->s3 ? kv_s3_next(x, r) : kv_web_next(x, r);
	if (r == KV_HTTP_ASK) {
		r = transfer_begin(t);
		if (r == 0)
			return;
	}
	end(t, r);
}

/* Return whether the refused connection to the UNIX socket is tried again: for
 * a second if nobody listens, and longer if the backlog is full. */
static bool connects_again(struct transfer *t, CURLcode code)
{
	const uint64_t now = kv_now_ns();
	long error = 0;

	if (code != CURLE_COULDNT_CONNECT || !t->x.site->socket)
		return false;
	curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &error);
	if (!t->refused_ns)
		t->refused_ns = now;
	if ((error == ECONNREFUSED || error == ENOENT) &&
	    now - t->refused_ns > SECOND_NS)
		return false;
	drop_handle(t);
	t->again_ns = now + REFUSED_MS * MS_NS;
	return true;
}

/* Return whether a kept connection was spoiled, for example by bytes after the
 * last answer: it gave no HTTP answer.  True once for each request. */
static bool was_spoiled(struct transfer *t, CURLcode code)
{
	long connects = 0;

	if (code == CURLE_OK || t->fresh || t->verdict < 0 ||
	    transfer_status(t) != 0)
		return false;
	curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &connects);
	return connects == 0;
}

/* Return whether the server refused the credentials, and newer ones were read:
 * the operation is then repeated, once. */
static bool begins_anew(struct transfer *t, int r)
{
	struct kv_exchange *x = &t->x;

	if ((r != -EPERM && r != -EACCES && x->status != 400) || t->anew ||
	    !kv_site_read_again(t->http->site, t->version))
		return false;
	t->anew = true;
	x->step = 0;
	x->phase = 0;
	free(kv_steal(x->made));
	return true;
}

/* Handle the end of a request. */
static void took(struct transfer *t, CURLcode code)
{
	struct http *http = t->http;
	struct kv_remote_op *op;
	const bool unreached = code == CURLE_COULDNT_RESOLVE_HOST ||
			       code == CURLE_COULDNT_CONNECT ||
			       code == CURLE_OPERATION_TIMEDOUT;
	int r;

	if (connects_again(t, code))
		return;
	if (was_spoiled(t, code)) {
		t->fresh = true;
		drop_handle(t);
		r = transfer_begin(t);
		if (r < 0)
			end(t, r);
		return;
	}
	t->fresh = false;
	r = transfer_result(t, code);
	/* Fail waiting operations only after a second failure to connect. */
	while (unreached && http->unreached &&
	       (op = kv_ops_take(&http->ops, false))) {
		memcpy(op->why, t->x.op->why, sizeof(op->why));
		kv_ops_end(&http->ops, op, r);
	}
	http->unreached = unreached;
	t->refused_ns = 0;
	t->x.step++;
	go_on(t, begins_anew(t, r) ? 0 : r);
}

/* ---- the thread ---- */

/* While no server is reached, begin one operation at a time: each may cost a thread
 * that resolves the server's name. */
static void begin_queued(struct http *http)
{
	struct kv_remote_op *op;
	struct transfer *t;

	while (http->active < (http->unreached ? 1 : TRANSFERS) &&
	       (op = kv_ops_take(&http->ops, false))) {
		t = calloc(1, sizeof(*t));
		if (!t) {
			kv_ops_end(&http->ops, op, -ENOMEM);
			continue;
		}
		t->http = http;
		t->x.op = op;
		t->x.site = http->site;
		TAILQ_INSERT_TAIL(&http->transfers, t, link);
		http->active++;
		go_on(t, 0);
	}
}

/* End cancelled operations, with @stop all; repeat refused connections that are due.
 * Return ms until the next repetition. */
static int tend(struct http *http, bool stop)
{
	const uint64_t now = kv_now_ns();
	struct transfer *t, *next;
	int ms = 60000, r;

	for (t = TAILQ_FIRST(&http->transfers); t; t = next) {
		next = TAILQ_NEXT(t, link);
		r = stop || t->x.op->cancelled ? -ECANCELED : 0;
		if (r == 0 && t->again_ns) {
			ms = REFUSED_MS;
			r = t->again_ns <= now ? transfer_begin(t) : 0;
		}
		if (r < 0)
			end(t, r);
	}
	return ms;
}

static void *http_run(void *arg)
{
	struct http *http = arg;
	CURLMsg *message;
	int running, left, ms;
	bool stop = false;

	while (!stop) {
		curl_multi_perform(http->multi, &running);
		while ((message = curl_multi_info_read(http->multi, &left))) {
			const CURLcode code = message->data.result;
			char *t = NULL;

			curl_easy_getinfo(message->easy_handle,
					  CURLINFO_PRIVATE, &t);
			if (message->msg == CURLMSG_DONE)
				took((struct transfer *)(void *)t, code);
		}
		stop = http->ops.stop;
		ms = tend(http, stop);
		begin_queued(http);
		/* curl_multi_poll ignores transfers that have just begun. */
		curl_multi_poll(http->multi, NULL, 0, stop ? 0 : ms, NULL);
	}
	return NULL;
}

static void wake(struct kv_ops *ops)
{
	curl_multi_wakeup(((struct http *)ops)->multi);
}

/* ---- the driver's table of calls ---- */

static int http_close(struct kv_ops *ops)
{
	struct http *http = (struct http *)ops;
	int r = kv_ops_fini(&http->ops);

	if (r < 0)
		return r;
	curl_multi_cleanup(http->multi);
	kv_site_free(http->site);
	free(http);
	return 0;
}

static int http_make(const char *scheme, const char *rest,
		     const struct kv_remote_config *config,
		     struct kv_ops **ret_ops, char **ret_why)
{
	struct http *http = calloc(1, sizeof(*http));
	int r;

	(void)config;
	*ret_why = NULL;
	if (!http)
		return -ENOMEM;
	curl_global_init(CURL_GLOBAL_DEFAULT); /* libcurl counts calls */
	TAILQ_INIT(&http->transfers);
	r = kv_ops_init(&http->ops, wake);
	if (r == 0)
		r = kv_site_new(scheme, rest, &http->site, ret_why);
	if (r == 0) {
		http->multi = curl_multi_init();
		r = http->multi ? 0 : -ENOMEM;
	}
	if (r == 0) {
		curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS,
				  (long)TRANSFERS);
		r = kv_ops_start(&http->ops, "kvfs-http", http_run, http);
	}
	if (r < 0) {
		http_close(&http->ops);
		return *ret_why ? r : kv_why(ret_why, r, "%s", strerror(-r));
	}
	*ret_ops = &http->ops;
	return 0;
}

#define CALLS .make = http_make, .close = http_close
const struct kv_remote_driver kv_remote_http = {"http", CALLS};
const struct kv_remote_driver kv_remote_https = {"https", CALLS};
const struct kv_remote_driver kv_remote_http_unix = {"http+unix", CALLS};
const struct kv_remote_driver kv_remote_s3 = {"s3", CALLS};
