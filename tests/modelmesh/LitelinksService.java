package com.ibm.watson.litelinks.server;

import com.google.common.util.concurrent.AbstractExecutionThreadService;
import com.google.common.util.concurrent.Service;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.ServerSocket;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Stands in for ModelMesh's launcher where ModelMesh's own tests start an instance, as a process or in their own: it starts `berth
 * modelmesh`, the program in the environment variable BERTH. It comes before litelinks in the class path.
 */
public final class LitelinksService {
    private static final long START_SECONDS = 60;
    private static final List<String> PREFIXES = List.of("MM_", "INTERNAL_", "KV_", "SHUTDOWN_", "LL_");

    private LitelinksService() {}

    /** The launcher's command line: `-s CLASS -n SERVICE -v VERSION -i INSTANCE -h PROBE_PORT`. */
    public static void main(String[] args) throws Exception {
        Process berth = command(Arrays.asList(args)).inheritIO().start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(berth)));
        // The hook would wait for this thread if it exited here.
        Runtime.getRuntime().halt(berth.waitFor());
    }

    /** A service in the process of a test; its settings are system properties. */
    public static Service createService(ServiceDeploymentConfig config) {
        return new Instance(config);
    }

    private static ProcessBuilder command(List<String> args) {
        List<String> words = new ArrayList<>(List.of(System.getenv("BERTH"), "modelmesh"));
        words.addAll(args);
        return new ProcessBuilder(words);
    }

    private static void end(Process process) {
        process.destroy();
        try {
            if (!process.waitFor(START_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException interrupted) {
            process.destroyForcibly();
        }
    }

    /** The part of litelinks' configuration that the tests set. */
    public static final class ServiceDeploymentConfig {
        private String registry;
        private String name;
        private String version;

        public ServiceDeploymentConfig(Class<?> service) {}

        public ServiceDeploymentConfig setServiceRegistry(String registry) {
            this.registry = registry;
            return this;
        }

        public ServiceDeploymentConfig setServiceName(String name) {
            this.name = name;
            return this;
        }

        public ServiceDeploymentConfig setServiceVersion(String version) {
            this.version = version;
            return this;
        }
    }

    private static final class Instance extends AbstractExecutionThreadService {
        private final ProcessBuilder command;
        private final int probe;
        /** Berth knows no ZooKeeper: suites that start one get an etcd of this class. */
        private final boolean zookeeper;
        private Process etcd;
        private Process process;

        Instance(ServiceDeploymentConfig config) {
            try (ServerSocket free = new ServerSocket(0)) {
                probe = free.getLocalPort();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            command = command(List.of("-n", config.name, "-v", config.version, "-i", "instance-" + probe, "-h", "" + probe)).inheritIO();
            Map<String, String> variables = command.environment();
            for (String name : System.getProperties().stringPropertyNames()) {
                if (PREFIXES.stream().anyMatch(name::startsWith)) {
                    variables.put(name, System.getProperty(name));
                }
            }
            zookeeper = !config.registry.startsWith("etcd:");
            variables.put("KV_STORE", zookeeper ? "etcd:http://localhost:2379" : config.registry);
        }

        @Override
        protected void startUp() throws Exception {
            if (zookeeper) {
                etcd = new ProcessBuilder("etcd", "--unsafe-no-fsync").inheritIO().start();
            }
            process = command.start();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
            while (!isReady()) {
                if (!process.isAlive() || System.nanoTime() > end) {
                    throw new IllegalStateException("berth modelmesh did not start");
                }
                Thread.sleep(100);
            }
        }

        private boolean isReady() {
            try {
                var asked = (HttpURLConnection) URI.create("http://localhost:" + probe + "/ready").toURL().openConnection();
                return asked.getResponseCode() == 200;
            } catch (IOException notYet) {
                return false;
            }
        }

        @Override
        protected void run() throws Exception {
            process.waitFor();
        }

        @Override
        protected void triggerShutdown() {
            process.destroy();
        }

        @Override
        protected void shutDown() {
            end(process);
            if (etcd != null) {
                end(etcd);
            }
        }
    }
}
