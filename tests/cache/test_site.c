/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_site.c - URLs of remote tiers on web servers, and the files with their
 * credentials.
 *
 * OWNS      the file "as" in the current directory.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "cache/remote/http.h"

static struct kv_site *site;

static int tear_down(void **state)
{
	(void)state;
	kv_site_free(kv_steal(site));
	unlink("as");
	return 0;
}

static void write_file(const char *text, mode_t mode)
{
	int fd = open("as", O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void must_take(const char *scheme, const char *url, const char *base)
{
	char *why = NULL;

	kv_site_free(kv_steal(site));
	if (kv_site_new(scheme, url, &site, &why) < 0)
		fail_msg("%s", why);
	assert_string_equal(site->base, base);
}

/* Check that @url is refused with @status, and that the reason is one line with
 * @word in it. */
static void must_refuse(const char *scheme, const char *url, int status,
			const char *word)
{
	struct kv_site *other = NULL;
	char *why = NULL;

	if (kv_site_new(scheme, url, &other, &why) != status)
		fail_msg("%s:%s: %s", scheme, url, why ? why : "is taken");
	assert_null(other);
	assert_non_null(why);
	assert_null(strchr(why, '\n'));
	if (!strstr(why, word))
		fail_msg("\"%s\" does not say %s", why, word);
	free(why);
}

static void test_urls_that_are_taken(void **state)
{
	(void)state;
	must_take("http", "//host", "http://host/");
	must_take("http", "//host/", "http://host/");
	must_take("http", "//host:80/a/b-c_d.e~f/",
		  "http://host:80/a/b-c_d.e~f/");
	must_take("https", "//[::1]:443/a", "https://[::1]:443/a/");
	must_take("https", "//10.0.0.1?ca=/dev/null", "https://10.0.0.1/");
	assert_string_equal(site->ca, "/dev/null");
	must_take("http+unix", "/run/x.sock", "http://localhost/");
	assert_string_equal(site->socket, "/run/x.sock");
	must_take("http+unix", "/run/x.sock:/a/b/?ca=/dev/null",
		  "http://localhost/a/b/");
	assert_string_equal(site->socket, "/run/x.sock");
	must_take("s3", "//bucket?endpoint=http://host:9000",
		  "http://host:9000/bucket/");
	assert_string_equal(site->region, "us-east-1");
	must_take("s3", "//bucket/a/b?region=x-1&endpoint=https%3A%2F%2fhost/",
		  "https://host/bucket/a/b/");
	assert_string_equal(site->region, "x-1");
	assert_int_equal(site->root, strlen("https://host/bucket/"));
}

static void test_urls_that_are_refused(void **state)
{
	static const struct {
		const char *scheme, *url, *word;
	} cases[] = {
		{"http", "", "//"},
		{"http", "/host", "//"},
		{"http", "//", "no server"},
		{"http", "///path", "no server"},
		{"http", "//../", "no server"},
		{"http", "//:80/", "no server"},
		{"http", "//ho st/", "no server"},
		{"http", "//host\r\nX: y/", "no server"},
		{"http", "//[::1/", "no server"},
		{"http", "//[]/", "no server"},
		{"http", "//[::1]x/", "no server"},
		{"http", "//host:", "no port"},
		{"http", "//host:0", "no port"},
		{"http", "//host:65536", "no port"},
		{"http", "//host:8a", "no port"},
		{"http", "//user:secret@host/", "credentials=FILE"},
		{"http", "//host/a//b", "empty"},
		{"http", "//host/a/../b", "dot"},
		{"http", "//host/.a", "dot"},
		{"http", "//host/a b", "' '"},
		{"http", "//host/a%20b", "'%'"},
		{"http", "//host/a#b", "'#'"},
		{"http", "//host?x", "unknown parameter \"x\""},
		{"http", "//host?", "unknown parameter"},
		{"http", "//host?a\nb", "unknown parameter \"a?b\""},
		{"http", "//host:8\n0", "no port"},
		{"http", "//host/a\nb", "into a path"},
		{"http", "//host/../a\n", "dot"},
		{"http", "//host?region=x", "unknown parameter \"region\""},
		{"http+unix", "run/x", "absolute path"},
		{"http+unix", "/run/x:y", "followed by :/PREFIX"},
		{"http+unix", "/run/x:/../y", "dot"},
		{"http", "//host?ca", "ca= has no value"},
		{"http", "//host?ca=", "ca= has no value"},
		{"http", "//host?ca=/dev/null&ca=/dev/null", "twice"},
		{"http", "//host?credentials=as", "https"},
		{"http", "//127.0.0.1.evil.net:1?credentials=no", "https"},
		{"s3", "//", "bucket is missing"},
		{"s3", "//?endpoint=http://host", "bucket is missing"},
		{"s3", "//ab?endpoint=http://host", "no bucket"},
		{"s3", "//Bucket?endpoint=http://host", "no bucket"},
		{"s3", "//bucket", "endpoint=URL is missing"},
		{"s3", "//bucket?endpoint=host", "neither http:// nor"},
		{"s3", "//bucket?endpoint=http://host/x", "has a path"},
		{"s3", "//bucket?endpoint=http://host:1/x", "has a path"},
		{"s3", "//bucket?endpoint=http://u:p@host", "credentials=FILE"},
		{"s3", "//bucket?endpoint=http://host&region=a:b", "no region"},
		{"s3", "//bucket/../x?endpoint=http://host", "dot"},
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++)
		must_refuse(cases[i].scheme, cases[i].url, -EINVAL,
			    cases[i].word);
	must_refuse("http", "//host?ca=no/such", -ENOENT, "ca=no/such: No");
}

static void test_a_password_in_a_url_is_not_repeated(void **state)
{
	struct kv_site *other;
	char *why = NULL;

	(void)state;
	assert_int_equal(
		kv_site_new("http", "//user:secret@host/", &other, &why),
		-EINVAL);
	assert_null(strstr(why, "secret"));
	free(why);
}

#define DAV "//localhost?credentials=as"
#define S3 "//bucket?endpoint=http://host&credentials=as"

static void test_credentials_that_are_taken(void **state)
{
	(void)state;
	write_file("user=me\npassword=p=w:x\n", 0600);
	must_take("http", DAV, "http://localhost/");
	assert_string_equal(site->user, "me");
	assert_string_equal(site->secret, "p=w:x");
	write_file("aws_access_key_id=id\naws_secret_access_key=key", 0400);
	must_take("s3", S3, "http://host/bucket/");
	assert_string_equal(site->user, "id");
	assert_string_equal(site->secret, "key");
	assert_null(site->token);
	write_file("# a comment\n[other]\naws_access_key_id = no\nnonsense\n"
		   "[default]\r\n\n region = x\n aws_access_key_id = id \r\n"
		   "aws_secret_access_key = key\naws_session_token = t/+=\n"
		   "[last]\naws_access_key_id = no\n",
		   0600);
	must_take("s3", S3, "http://host/bucket/");
	assert_string_equal(site->user, "id");
	assert_string_equal(site->secret, "key");
	assert_string_equal(site->token, "t/+=");
}

static void test_credentials_that_are_refused(void **state)
{
	static const struct {
		const char *text, *word;
	} cases[] = {
		{"", "no user"},
		{"user=me\n", "no password"},
		{"password=x\n", "no user"},
		{"user=me\npassword=\n", "line 2"},
		{"user=me\npassword\n", "line 2"},
		{"user=me\nuser=you\npassword=x\n", "line 2 repeats user"},
		{"user=me\npassword=a b\n", "line 2"},
		{"user=me\npassword=a\001b\n", "line 2"},
		{"[x]\nuser=me\npassword=x\n", "no user"},
		{"aws_access_key_id=id\naws_secret_access_key=x\n", "no user"},
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		write_file(cases[i].text, 0600);
		must_refuse("http", DAV, -EINVAL, cases[i].word);
	}
	write_file("user=me\npassword=x\n", 0600);
	must_refuse("s3", S3, -EINVAL, "credentials=as: there is no aws_acc");
	unlink("as");
	must_refuse("s3", S3, -ENOENT, "credentials=as: No such file");
	must_refuse("s3", "//bucket?endpoint=http://host&credentials=/",
		    -EINVAL, "not a file");
}

static void test_a_file_that_others_may_read_is_refused(void **state)
{
	static const mode_t modes[] = {0644, 0640, 0620, 0604, 0601};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(modes); i++) {
		write_file("user=me\npassword=x\n", modes[i]);
		must_refuse("http", DAV, -EACCES, "must be 0600");
	}
	if (geteuid() != 0)
		return;
	write_file("user=me\npassword=x\n", 0600);
	assert_int_equal(chown("as", 1234, 1234), 0);
	must_refuse("http", DAV, -EACCES, "it belongs to user 1234");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_urls_that_are_taken, tear_down),
		cmocka_unit_test(test_urls_that_are_refused),
		cmocka_unit_test(test_a_password_in_a_url_is_not_repeated),
		cmocka_unit_test_teardown(test_credentials_that_are_taken,
					  tear_down),
		cmocka_unit_test_teardown(test_credentials_that_are_refused,
					  tear_down),
		cmocka_unit_test_teardown(
			test_a_file_that_others_may_read_is_refused, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
