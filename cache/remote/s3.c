/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3.c - the backend in a bucket: s3://BUCKET[/PREFIX]?endpoint=URL.
 *
 * libcurl signs requests, but not bodies.  A folder is removed page by page: list up to
 * 1000 objects, delete them with one request.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <openssl/evp.h>
#include <stdio.h>

#include "cache/remote/http.h"

/* Begin a request like kv_http_ask(), with the headers that each one needs; -ENOMEM. */
static int ask(struct kv_exchange *x, const char *method)
{
	kv_http_ask(x, method);
	if (kv_http_header(x, "x-amz-content-sha256", "UNSIGNED-PAYLOAD") < 0 ||
	    (x->site->token &&
	     kv_http_header(x, "x-amz-security-token", x->site->token) < 0))
		return -ENOMEM;
	return KV_HTTP_ASK;
}

/* List the first @most objects below @op->name.  The signature needs sorted parameters. */
static int list(struct kv_exchange *x, const char *most)
{
	char prefix[KV_SITE_BASE_MAX + KV_OBJECT_NAME_MAX + 1], *escaped;
	const int r = ask(x, "GET");

	snprintf(prefix, sizeof(prefix), "%s%s", x->site->base + x->site->root,
		 x->op->name);
	escaped = curl_easy_escape(NULL, prefix, 0);
	if (!escaped)
		return -ENOMEM;
	snprintf(x->url + x->site->root - 1, sizeof(x->url) - x->site->root,
		 "?list-type=2&max-keys=%s&prefix=%s", most, escaped);
	curl_free(escaped);
	x->page = true;
	return r;
}

/* Return the next text between @open and @close from *@at on, and its length, or NULL. */
static char *element(char **at, const char *open, const char *close, size_t *n)
{
	char *begin = *at ? strstr(*at, open) : NULL, *end;

	end = begin ? strstr(begin, close) : NULL;
	if (!end)
		return NULL;
	begin += strlen(open);
	*n = (size_t)(end - begin);
	*at = end + strlen(close);
	return begin;
}

/* Delete the objects of the listed page.  0: the page is empty. */
static int delete_listed(struct kv_exchange *x)
{
	const char *prefix = x->site->base + x->site->root;
	const size_t root = strlen(prefix), below = strlen(x->op->name);
	_cleanup_(kv_freep) char *body = malloc(2 * x->text_bytes + 200);
	unsigned char sum[EVP_MAX_MD_SIZE], text[2 * EVP_MAX_MD_SIZE];
	char *at = x->text, *to = body, *key;
	size_t n, keys = 0;
	unsigned int bytes;
	int r;

	if (!body)
		return -ENOMEM;
	to += sprintf(to, "<Delete><Quiet>true</Quiet>");
	for (; (key = element(&at, "<Key>", "</Key>", &n)); keys++) {
		/* Delete names below the folder only, whatever is listed. */
		if (n <= root + below || memcmp(key, prefix, root) != 0 ||
		    memcmp(key + root, x->op->name, below) != 0)
			return kv_op_failed(x->op, -EPROTO,
					    "the list has other objects");
		to += sprintf(to, "<Object><Key>%.*s</Key></Object>", (int)n,
			      key);
	}
	to += sprintf(to, "</Delete>");
	if (keys == 0)
		return 0;
	x->op->length += keys;
	if (x->made && strcmp(x->made, body) == 0)
		return kv_op_failed(x->op, -EIO, "deleted objects stay");
	free(x->made);
	x->made = kv_steal(body);
	n = (size_t)(to - x->made);
	if (EVP_Digest(x->made, n, sum, &bytes, EVP_md5(), NULL) != 1)
		return -ENOMEM;
	EVP_EncodeBlock(text, sum, (int)bytes);
	r = ask(x, "POST");
	x->body[0] = (struct iovec){x->made, n};
	strcpy(x->url + x->site->root - 1, "?delete=");
	x->page = true;
	if (kv_http_header(x, "Content-MD5", (char *)text) < 0 ||
	    kv_http_header(x, "Content-Type", "application/xml") < 0)
		return -ENOMEM;
	return r;
}

/* Prepare the next request that clears a folder: requests to list a page and to delete
 * its objects alternate. */
static int next_of_clear(struct kv_exchange *x, int r)
{
	char *at = x->text, *code;
	size_t n;

	if (r < 0)
		return r;
	if (x->step % 2 == 1) {
		r = delete_listed(x);
		return r != 0 ? r : x->made ? 0 : -ENOENT;
	}
	code = x->step ? element(&at, "<Code>", "</Code>", &n) : NULL;
	if (code)
		return kv_op_failed(x->op, -EACCES, "%.*s", (int)KV_MIN(n, 60),
				    code);
	return list(x, "1000"); /* DeleteObjects takes as many */
}

int kv_s3_next(struct kv_exchange *x, int r)
{
	const char *name = x->op->name;

	if (x->op->call == KV_REMOTE_DELETE && name[0] &&
	    name[strlen(name) - 1] == '/')
		return next_of_clear(x, r);
	/* DELETE succeeds, too, if there is no object: send a HEAD request first. */
	if (x->op->call == KV_REMOTE_DELETE && x->step == 1 && r == 0)
		return ask(x, "DELETE");
	if (x->step > 0)
		return r;
	/* Without a name, list the bucket: the answer to a HEAD would have no error code. */
	if (x->op->call == KV_REMOTE_HEAD && !name[0])
		return list(x, "1");
	return ask(x, x->op->call == KV_REMOTE_DELETE ? "HEAD" : NULL);
}

int kv_s3_judge(struct kv_exchange *x, int r)
{
	static const struct {
		const char *code;
		int status;
	} codes[] = {
		{"NoSuchKey", -ENOENT},
		{"AccessDenied", -EACCES},
		{"NoSuchBucket", -EIO},
		{"EntityTooLarge", -ENOSPC},
		{"QuotaExceeded", -ENOSPC},
		{"XMinioStorageFull", -ENOSPC},
		{"InvalidAccessKeyId", -EPERM},
		{"SignatureDoesNotMatch", -EPERM},
		{"ExpiredToken", -EPERM},
		{"InvalidToken", -EPERM},
		{"TokenRefreshRequired", -EPERM},
		{"RequestTimeTooSkewed", -EPERM},
		{"AllAccessDisabled", -EPERM},
		{"AccountProblem", -EPERM},
		{"AuthorizationHeaderMalformed", -EPERM},
	};
	char *at = x->text, *code;
	size_t n;

	code = element(&at, "<Code>", "</Code>", &n);
	if (!code)
		return r;
	n = KV_MIN(n, 60);
	kv_op_failed(x->op, r, "%.*s (%ld)", (int)n, code, x->status);
	for (size_t i = 0; i < KV_ARRAY_LEN(codes); i++)
		if (strlen(codes[i].code) == n &&
		    memcmp(codes[i].code, code, n) == 0)
			return codes[i].status;
	return r;
}
