/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - one request to a web server, and its answer.
 */
#ifndef KV_CACHE_REMOTE_REQUEST_H
#define KV_CACHE_REMOTE_REQUEST_H

#include "cache/remote/http.h"

struct kv_request {
	const struct kv_http_dialect *dialect; /* fixed */
	CURL *easy; /* while it is made; its private pointer is the request */
	struct kv_exchange x;
	struct curl_slist *headers;
	uint64_t sent, received, header_bytes;
	int verdict; /* why the answer was cut */
	/* Connections that are older are not trusted; 0: all are. */
	uint64_t distrust_ns;
	char error[CURL_ERROR_SIZE];
};

/* Have @multi make the request that the exchange has prepared.  -ENOMEM, -EIO:
 * it is to be ended all the same. */
int kv_request_begin(struct kv_request *request, CURLM *multi);

/* How it went, of which libcurl says @code. */
int kv_request_result(const struct kv_request *request, CURLcode code);

/* The same in words. */
void kv_request_why(const struct kv_request *request, char *why, size_t room);

/* The status of its answer; 0: none has come. */
long kv_request_status(const struct kv_request *request);

/* Nobody was there: what else is asked will hardly fare better. */
bool kv_request_is_unreached(CURLcode code);

/* Forget it, be it under way: the exchange has none. */
void kv_request_end(struct kv_request *request, CURLM *multi);

#endif
