/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of remote tiers on web servers, and files of their credentials. */
#include "cache/remote/http.h"
#include "tests/fuzz/fuzz.h"

static const char *const schemes[] = {"http", "https", "s3", "http+unix"};

static void check_one_line(const char *why)
{
	fuzz_must(why);
	for (; *why; why++)
		fuzz_must((unsigned char)*why >= ' ');
}

/* Check that the URL has only characters that a URL is made of: no newline, no
 * user name, and no ".." that leads upwards. */
static void check_base(const struct kv_site *site)
{
	const char *base = site->base;
	size_t n = strlen(base);

	fuzz_must(n <= KV_SITE_BASE_MAX && site->root <= n);
	fuzz_must(strncmp(base, "http://", 7) == 0 ||
		  strncmp(base, "https://", 8) == 0);
	fuzz_must(base[n - 1] == '/' && base[site->root - 1] == '/');
	fuzz_must(!strstr(base, "/.") && !strpbrk(base, " @?#%\\\r\n"));
}

static void check_url(const char *scheme, const char *url)
{
	struct kv_site *site = NULL;
	char *why = NULL;
	int r = kv_site_new(scheme, url, &site, &why);

	if (r < 0)
		check_one_line(why);
	else
		check_base(site);
	kv_site_free(site);
	free(why);
}

static void check_secret(const char *secret)
{
	for (; secret && *secret; secret++)
		fuzz_must(*secret > ' ' && *secret <= '~');
}

static void check_credentials(struct fuzz *f, bool s3)
{
	struct kv_site *site = calloc(1, sizeof(*site));
	_cleanup_(kv_freep) char *text = strndup((const char *)f->at, f->left);
	char *why = NULL;

	fuzz_must(site && text);
	if (kv_site_read_credentials(site, text, s3, &why) < 0)
		check_one_line(why);
	else
		fuzz_must(site->user && *site->user && site->secret &&
			  *site->secret);
	check_secret(site->user);
	check_secret(site->secret);
	check_secret(site->token);
	kv_site_free(site);
	free(why);
}

/* Input: the scheme, the URL up to a newline, and the file of credentials. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	const int which = fuzz_byte(&f) % KV_ARRAY_LEN(schemes);
	_cleanup_(kv_freep) char *url = fuzz_line(&f);

	check_url(schemes[which], url);
	check_credentials(&f, which == 2);
	return 0;
}
