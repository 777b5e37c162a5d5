/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - one request to a web server, and its answer.
 *
 * What an answer may do is bounded: redirects are not followed, a long header
 * or a body that is longer than it should be ends it.
 *
 * OWNS      the easy handle and its headers, from begin to end.
 *
 * INVARIANTS
 *   (1) libcurl touches the operation's memory only while there is a handle.
 *
 * LOCKING   none: all is the thread's that makes the request.
 */
#include <stdio.h>

#include "cache/remote/request.h"

#define CONNECT_MS 2000l
#define EXPECT_MS 100l /* for a server's leave to send what is large */
#define BUFFER_MIN (16l << 10)
#define BUFFER_MAX (512l << 10)
#define SECOND_NS UINT64_C(1000000000)
#define HEADERS_MAX 65536u
#define PAGE_MAX 65536u /* of an answer that tells what is wrong */

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

long kv_request_status(const struct kv_request *request)
{
	long status = 0;

	curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

/* ---- an answer, as it comes ---- */

static int note_of_header(struct kv_request *request)
{
	struct kv_exchange *x = &request->x;
	struct curl_header *header;
	size_t n;

	if (curl_easy_header(request->easy, request->dialect->note_header, 0,
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
static int check_headers(struct kv_request *request)
{
	const bool noted = request->dialect->note_header;
	struct kv_exchange *x = &request->x;
	curl_off_t length = -1;
	int r = 0;

	if (x->wants == KV_ANSWER_NOTHING)
		return 0;
	if (kv_request_status(request) != 200)
		return -EPROTO;
	if (x->wants == KV_ANSWER_PAGE)
		return 0;
	if (noted)
		r = note_of_header(request);
	if (r < 0 || (x->wants == KV_ANSWER_NOTE && !noted))
		return r;
	if (x->wants == KV_ANSWER_OBJECT && x->op->length > x->op->room)
		return -EFBIG;
	curl_easy_getinfo(request->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T,
			  &length);
	return length >= 0 && (uint64_t)length != x->op->length ? -EBADMSG : 0;
}

static size_t on_header(char *line, size_t one, size_t n, void *arg)
{
	struct kv_request *request = arg;
	const long status = kv_request_status(request);

	(void)one;
	request->header_bytes += n;
	if (request->header_bytes > HEADERS_MAX)
		request->verdict = -EPROTO;
	else if ((line[0] == '\r' || line[0] == '\n') && status >= 200 &&
		 status < 300)
		request->verdict = check_headers(request);
	return request->verdict < 0 ? 0 : n;
}

/* Where the next @n bytes belong; NULL: nowhere.  *@ret_r < 0: there are none. */
static uint8_t *place(struct kv_request *request, size_t n, int *ret_r)
{
	struct kv_exchange *x = &request->x;
	const long status = kv_request_status(request);
	uint64_t at = request->received, end = at + n;

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
	struct kv_request *request = arg;
	uint8_t *to = place(request, n, &request->verdict);

	(void)one;
	if (request->verdict < 0)
		return 0;
	if (to)
		memcpy(to, data, n);
	request->received += n;
	return n;
}

static size_t on_send(char *room, size_t one, size_t n, void *arg)
{
	struct kv_request *request = arg;

	(void)one;
	n = KV_MIN(n, request->x.body_n - request->sent);
	memcpy(room, (const uint8_t *)request->x.body + request->sent, n);
	request->sent += n;
	return n;
}

/* A connection that had been left open was closed: once more on another. */
static int on_rewind(void *arg, curl_off_t at, int whence)
{
	struct kv_request *request = arg;

	if (whence != SEEK_SET || at < 0 || (uint64_t)at > request->x.body_n)
		return CURL_SEEKFUNC_FAIL;
	request->sent = (uint64_t)at;
	return CURL_SEEKFUNC_OK;
}

/* ---- a request ---- */

/* Each request has buffers of its own, which cost what they are long. */
static long buffer_for(uint64_t bytes)
{
	return bytes < (uint64_t)BUFFER_MIN   ? BUFFER_MIN
	       : bytes > (uint64_t)BUFFER_MAX ? BUFFER_MAX
					      : (long)bytes;
}

static CURLcode set_way(const struct kv_request *request)
{
	const uint64_t received =
		request->x.wants == KV_ANSWER_OBJECT ? request->x.op->room : 0;
	const struct {
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
		{CURLOPT_BUFFERSIZE, buffer_for(received)},
		{CURLOPT_UPLOAD_BUFFERSIZE, buffer_for(request->x.body_n)},
	};
	CURLcode code = CURLE_OK;

	for (size_t i = 0; i < KV_ARRAY_LEN(options) && code == CURLE_OK; i++)
		code = curl_easy_setopt(request->easy, options[i].option,
					options[i].value);
	if (code == CURLE_OK)
		code = curl_easy_setopt(request->easy, CURLOPT_PROTOCOLS_STR,
					"http,https");
	/* Not that of the environment. */
	if (code == CURLE_OK)
		code = curl_easy_setopt(request->easy, CURLOPT_PROXY, "");
	if (code == CURLE_OK)
		code = curl_easy_setopt(request->easy, CURLOPT_USERAGENT,
					"kvfs/" KV_VERSION);
	if (code == CURLE_OK)
		code = curl_easy_setopt(request->easy, CURLOPT_TIMEOUT_MS,
					request->x.limit_ms);
	if (code == CURLE_OK && request->x.site->ca)
		code = curl_easy_setopt(request->easy, CURLOPT_CAINFO,
					request->x.site->ca);
	return code;
}

static void set_calls(struct kv_request *request)
{
	curl_easy_setopt(request->easy, CURLOPT_PRIVATE, request);
	curl_easy_setopt(request->easy, CURLOPT_ERRORBUFFER, request->error);
	curl_easy_setopt(request->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(request->easy, CURLOPT_HEADERDATA, request);
	curl_easy_setopt(request->easy, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(request->easy, CURLOPT_WRITEDATA, request);
	curl_easy_setopt(request->easy, CURLOPT_READFUNCTION, on_send);
	curl_easy_setopt(request->easy, CURLOPT_READDATA, request);
	curl_easy_setopt(request->easy, CURLOPT_SEEKFUNCTION, on_rewind);
	curl_easy_setopt(request->easy, CURLOPT_SEEKDATA, request);
}

static int set_headers(struct kv_request *request)
{
	for (size_t i = 0; i < KV_HTTP_HEADERS; i++) {
		struct curl_slist *longer;

		if (!request->x.headers[i][0])
			continue;
		longer = curl_slist_append(request->headers,
					   request->x.headers[i]);
		if (!longer)
			return -ENOMEM;
		request->headers = longer;
	}
	curl_easy_setopt(request->easy, CURLOPT_HTTPHEADER, request->headers);
	return 0;
}

static CURLcode set_method(struct kv_request *request)
{
	const struct kv_exchange *x = &request->x;
	const bool head = strcmp(x->method, "HEAD") == 0;
	const bool put = strcmp(x->method, "PUT") == 0;

	if (head)
		curl_easy_setopt(request->easy, CURLOPT_NOBODY, 1l);
	else if (put)
		curl_easy_setopt(request->easy, CURLOPT_UPLOAD, 1l);
	else if (strcmp(x->method, "GET") != 0)
		curl_easy_setopt(request->easy, CURLOPT_CUSTOMREQUEST,
				 x->method);
	curl_easy_setopt(request->easy, CURLOPT_INFILESIZE_LARGE,
			 put ? (curl_off_t)x->body_n : (curl_off_t)-1);
	return curl_easy_setopt(request->easy, CURLOPT_URL, x->url);
}

/* Who asks. */
static CURLcode set_user(struct kv_request *request)
{
	const struct kv_site *site = request->x.site;
	CURLcode code = request->dialect->authorize(request->easy, site);

	if (code == CURLE_OK)
		code = curl_easy_setopt(request->easy, CURLOPT_USERNAME,
					site->user);
	if (code == CURLE_OK)
		code = curl_easy_setopt(request->easy, CURLOPT_PASSWORD,
					site->secret);
	return code;
}

/*
 * A new handle each time: one that was used counts how often a connection that
 * was kept turned out to be closed, and gives up after some; and in libcurl 7.88
 * an answer whose first header is folded has it read headers of the one before,
 * which are freed.
 */
static CURLcode set_request(struct kv_request *request)
{
	CURLcode code;

	request->easy = curl_easy_init();
	if (!request->easy)
		return CURLE_OUT_OF_MEMORY;
	set_calls(request);
	code = set_way(request);
	if (code == CURLE_OK && request->x.site->user)
		code = set_user(request);
	return code == CURLE_OK ? set_method(request) : code;
}

/* libcurl counts a connection's age in whole seconds, and closes those that are
 * too old when it looks for one. */
static void set_connection(const struct kv_request *request)
{
	const uint64_t age = kv_now_ns() - request->distrust_ns;
	const bool fresh = age < 2 * SECOND_NS;

	if (request->distrust_ns == 0)
		return;
	curl_easy_setopt(request->easy, CURLOPT_FRESH_CONNECT, (long)fresh);
	curl_easy_setopt(request->easy, CURLOPT_FORBID_REUSE, (long)fresh);
	if (!fresh)
		curl_easy_setopt(request->easy, CURLOPT_MAXLIFETIME_CONN,
				 (long)(age / SECOND_NS) - 1);
}

int kv_request_begin(struct kv_request *request, CURLM *multi)
{
	int r = errno_of_code(set_request(request));

	if (r == 0)
		set_connection(request);

	if (r == 0)
		r = set_headers(request);
	if (r == 0 && curl_multi_add_handle(multi, request->easy))
		r = -EIO;
	return r;
}

void kv_request_end(struct kv_request *request, CURLM *multi)
{
	struct kv_exchange *x = &request->x;

	if (request->easy) {
		curl_multi_remove_handle(multi, request->easy);
		curl_easy_cleanup(kv_steal(request->easy));
	}
	curl_slist_free_all(kv_steal(request->headers));
	x->method = NULL;
	x->body = NULL;
	x->body_n = 0;
	x->wants = KV_ANSWER_NOTHING;
	x->limit_ms = 0;
	for (size_t i = 0; i < KV_HTTP_HEADERS; i++)
		x->headers[i][0] = '\0';
	request->sent = request->received = request->header_bytes = 0;
	request->verdict = 0;
	request->error[0] = '\0';
}

int kv_request_result(const struct kv_request *request, CURLcode code)
{
	const struct kv_exchange *x = &request->x;
	const long status = kv_request_status(request);

	if (request->verdict < 0)
		return request->verdict;
	/* It has said what is wrong, however it went on. */
	if (status >= 300)
		return errno_of_status(status);
	if (code != CURLE_OK)
		return errno_of_code(code);
	if (x->wants == KV_ANSWER_OBJECT && request->received != x->op->length)
		return -EBADMSG;
	return errno_of_status(status);
}

void kv_request_why(const struct kv_request *request, char *why, size_t room)
{
	const long status = request->easy ? kv_request_status(request) : 0;

	if (request->header_bytes > HEADERS_MAX)
		snprintf(why, room, "its headers do not end");
	else if (request->error[0])
		snprintf(why, room, "%s", request->error);
	else if (status >= 300)
		snprintf(why, room, "%s (status %ld)",
			 status < 400 ? "it is said to be elsewhere"
				      : strerror(-errno_of_status(status)),
			 status);
	else
		*why = '\0';
}

bool kv_request_is_unreached(CURLcode code)
{
	return code == CURLE_COULDNT_RESOLVE_HOST ||
	       code == CURLE_COULDNT_CONNECT ||
	       code == CURLE_OPERATION_TIMEDOUT;
}
