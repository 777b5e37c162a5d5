#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# curl.sh FOLDER - build FOLDER/libcurl.so.4 from Debian's source package, patches included, with
# HTTP and HTTPS only: the distribution's libcurl needs 22 more libraries, which kvfs never calls.
set -eu
mkdir -p "$1" && cd "$1"
[ ! -e libcurl.so.4 ] || exit 0
# apt keeps the lists of source packages below FOLDER, so that the machine's stay as they are.
mkdir -p lists cache
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' \
	'Created-By: Packages' 'Origin: Debian' | sort -u >sources
cat >apt.conf <<END
Dir::Etc::SourceList "$PWD/sources";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$PWD/lists";
Dir::Cache "$PWD/cache";
APT::Sandbox::User "$(id -un)";
END
export APT_CONFIG=$PWD/apt.conf
apt-get -qq update
apt-get -qq source --download-only curl
rm -rf source
dpkg-source --no-check -x curl_*.dsc source >source.log
cd source
# The last two patches rename the library for GnuTLS and NSS.
for patch in 99_nss 90_gnutls; do patch -sRp1 <debian/patches/$patch.patch; done
# Patched files are newer than configure, which then would want autoconf.
find . -exec touch -d '1 minute ago' {} +
off=
for protocol in ldap ldaps rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt ftp file; do
	off="$off --disable-$protocol"
done
for feature in manual ntlm libcurl-option alt-svc hsts doh; do off="$off --disable-$feature"; done
for library in brotli zstd zlib libpsl libidn2 librtmp libssh libssh2 nghttp2 gssapi libgsasl; do
	off="$off --without-$library"
done
# arc4random() would need glibc 2.36.
./configure -q AUTOCONF=: AUTOMAKE=: ACLOCAL=: AUTOHEADER=: ac_cv_func_arc4random=no \
	--prefix=/nonexistent --disable-static --enable-versioned-symbols --with-openssl \
	--with-ca-bundle=/etc/ssl/certs/ca-certificates.crt --with-ca-path=/etc/ssl/certs $off
make -s -C lib V=0
strip --strip-unneeded -o ../libcurl.so.4 lib/.libs/libcurl.so.4
