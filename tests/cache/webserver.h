/* SPDX-License-Identifier: Apache-2.0 */
/* webserver.h - start an nginx with WebDAV in the current directory, on a free
 * port of this machine.  The server ends with the test. */
#ifndef KV_TESTS_CACHE_WEBSERVER_H
#define KV_TESTS_CACHE_WEBSERVER_H

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/kv.h"

static const char webserver_conf[] =
	"daemon off; master_process off; pid nginx.pid;\n"
	"events { worker_connections 512; }\n"
	"http {\n"
	"  access_log off; client_max_body_size 0;\n"
	"  client_body_temp_path body; proxy_temp_path body;\n"
	"  fastcgi_temp_path body; uwsgi_temp_path body;\n"
	"  scgi_temp_path body; root data;\n"
	"  dav_methods PUT DELETE; create_full_put_path on;\n"
	"  server {\n"
	"    listen 127.0.0.1:%u reuseport;\n"
	"    location /full/ { return 507; }\n"
	"    location /forbidden/ { return 403; }\n"
	"    location /busy/ { return 503; }\n"
	"    location /often/ { add_header Retry-After 7 always; "
	"return 429; }\n"
	"    location /ill/ { return 500; }\n"
	"    location /elsewhere/ { return 301 /there/; }\n"
	"    location /small/ { client_max_body_size 1000; }\n"
	"    location /private/ {\n"
	"      auth_basic x; auth_basic_user_file users;\n"
	"    }\n"
	"    location /no-list/ { location ~ /$ { return 403; } }\n"
	"    location /gets/ { dav_methods off; }\n"
	"    location /read-only/ { limit_except GET { deny all; } }\n"
	"  }\n"
	"  server { listen unix:web.sock; }\n"
	"%s"
	"}\n";

static const char webserver_tls[] =
	"  server {\n"
	"    listen 127.0.0.1:%u ssl reuseport;\n"
	"    ssl_certificate site.pem; ssl_certificate_key site.key;\n"
	"  }\n";

struct webserver {
	pid_t pid;
	/* TCP ports for HTTP and for TLS; tls is 0 without TLS */
	unsigned port, tls;
};

/* Return a socket that is bound to @port (0: any free one) of this machine and
 * shares the port with the other sockets of this user that ask for that. */
static inline int bound(unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		abort();
	return fd;
}

/* Return a port on which nothing listens.  A socket stays bound to the port
 * until the program ends, so that no other process gets the port while the
 * server is down, not even for an outgoing connection. */
static inline unsigned reserve_port(void)
{
	struct sockaddr_in address;
	socklen_t n = sizeof(address);

	if (getsockname(bound(0), (struct sockaddr *)&address, &n) < 0)
		abort();
	return ntohs(address.sin_port);
}

static inline bool listens(unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	r = connect(fd, (struct sockaddr *)&address, sizeof(address));
	close(fd);
	return r == 0;
}

static inline void webserver_write(const struct webserver *server)
{
	char tls[sizeof(webserver_tls) + 16] = "";
	FILE *file = fopen("nginx.conf", "w");

	if (!file)
		abort();
	if (server->tls)
		snprintf(tls, sizeof(tls), webserver_tls, server->tls);
	fprintf(file, webserver_conf, server->port, tls);
	fclose(file);
	mkdir("data", 0700);
}

/* Start the server on its ports.  Return -1 if it does not answer. */
static inline int webserver_start(struct webserver *server)
{
	char here[4096];

	if (!getcwd(here, sizeof(here)))
		return -1;
	unlink("web.sock"); /* socket of a server that was killed */
	server->pid = fork();
	if (server->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/usr/sbin/nginx", "nginx", "-p", here, "-c",
		      "nginx.conf", "-e", "error.log", "-g",
		      geteuid() == 0 ? "user root;" : "", NULL);
		_exit(127);
	}
	while (!listens(server->port) ||
	       (server->tls && !listens(server->tls))) {
		if (waitpid(server->pid, NULL, WNOHANG) != 0)
			return -1;
		usleep(10000);
	}
	return 0;
}

/* Kill the server with SIGKILL, also when it is stopped. */
static inline void webserver_kill(struct webserver *server)
{
	kill(server->pid, SIGKILL);
	waitpid(server->pid, NULL, 0);
}

#endif
