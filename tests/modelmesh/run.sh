#!/bin/sh
# Runs ModelMesh's own Java tests against `berth modelmesh`, as they are: `run.sh CHECKOUT [CLASS…]`.
#
# CHECKOUT is a checkout of kserve/modelmesh that was compiled with `mvn -DskipTests test-compile dependency:build-classpath
# -Dmdep.outputFile=target/test-classpath.txt -Dmdep.includeScope=test` (Maven 3.9.6, Java 21 or later). BERTH is the program, JUNIT
# the jar of junit-platform-console-standalone; etcd is on the PATH. The tests have a network of their own, in which their ports are free.
set -eu
checkout=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift
[ $# -gt 0 ] || set -- $(cat "$here/suites.txt")
: "${BERTH:?the berth program}" "${JUNIT:?the jar of junit-platform-console-standalone}"
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dependencies=$(cat "$checkout/target/test-classpath.txt")
"${java}c" -nowarn -d "$work/stand-in" -cp "$dependencies" "$here/LitelinksService.java"
export BERTH DEPLOYMENT_NAME=ga-tf-mm SLOT_NAME=ga COMPONENT_NAME=tf-mm GROUP_NAME=clu
export MM_INFO_METRICS='assistant_deployment_info:relabel;deployment=DEPLOYMENT_NAME,slot=SLOT_NAME,component=COMPONENT_NAME,group=GROUP_NAME'
failed=0
for class in "$@"; do
  # Each class has its own etcd, of its own folder.
  mkdir -p "$work/$class"
  echo "── $class"
  (
    cd "$work/$class"
    exec unshare --net --pid --fork --kill-child --mount-proc sh -c 'ip link set lo up && exec "$@"' all "$java" \
      -Dlog4j.configurationFile="$checkout/target/test-classes/log4j2-test.xml" \
      -cp "$work/stand-in:$checkout/target/test-classes:$checkout/target/classes:$JUNIT:$dependencies" \
      org.junit.platform.console.ConsoleLauncher execute --disable-banner --details=tree --select-class "com.ibm.watson.modelmesh.$class"
  ) || failed=$((failed + 1))
done
exit $((failed > 0))
