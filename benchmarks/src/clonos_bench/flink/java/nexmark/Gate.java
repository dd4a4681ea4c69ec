package nexmark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.common.JobID;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterJobClient;

/**
 * What the sources of a job wait for, and a stopwatch: from when it opens, which is when all tasks
 * run, until the last sink has ended.
 *
 * <p>One job at a time, and all of it in this virtual machine.
 */
public final class Gate {
    private static final Path PROCESSORS = Path.of("/proc/stat");
    private static final int[] BUSY = {1, 2, 3, 6, 7}; // user, nice, system, interrupts of both kinds
    private static final long POLL_MS = 10;
    private static volatile boolean isOpen;
    private static long beganNs;
    private static long endedNs;
    private static long beganTicks;
    private static long endedTicks;
    private static long rows;
    private static int reached;

    private Gate() {}

    /** Before a job is started. */
    public static synchronized void close() {
        isOpen = false;
        rows = 0;
        reached = 0;
        endedNs = 0;
    }

    static boolean isOpen() {
        return isOpen;
    }

    /** A sink got its first row. */
    static synchronized void reached() {
        reached++;
    }

    /** A sink has ended. */
    static synchronized void ended(long moreRows) {
        endedNs = System.nanoTime();
        endedTicks = ticks();
        rows += moreRows;
    }

    /**
     * Lets the sources go when all tasks run, what {@code open()} starts included, and so many sinks
     * have got rows that were sent ahead. Returns, when the job has ended, the answer to whoever has
     * given it: seconds, rows that are left, and the time that all processors of the machine were
     * busy, in ticks.
     */
    public static String run(JobClient client, int sinks) throws Exception {
        CompletableFuture<?> end = client.getJobExecutionResult();
        if (client instanceof MiniClusterJobClient) {
            while (!end.isDone() && !(areRunning(client) && haveReached(sinks))) {
                Thread.sleep(POLL_MS);
            }
            open();
        }
        end.get();
        return answer();
    }

    private static synchronized void open() {
        beganTicks = ticks();
        beganNs = System.nanoTime();
        isOpen = true;
    }

    private static synchronized boolean haveReached(int sinks) {
        return reached >= sinks;
    }

    private static synchronized String answer() {
        if (endedNs == 0) {
            throw new IllegalStateException("no sink has ended");
        }
        return "done " + (endedNs - beganNs) / 1e9 + " " + rows + " " + (endedTicks - beganTicks);
    }

    private static boolean areRunning(JobClient client) throws Exception {
        Field field = MiniClusterJobClient.class.getDeclaredField("miniCluster");
        field.setAccessible(true);
        JobID job = client.getJobID();
        boolean isEmpty = true;
        for (AccessExecutionVertex vertex :
                ((MiniCluster) field.get(client))
                        .getExecutionGraph(job).get().getAllExecutionVertices()) {
            isEmpty = false;
            if (vertex.getExecutionState() != ExecutionState.RUNNING) {
                return false;
            }
        }
        return !isEmpty;
    }

    private static long ticks() {
        try {
            String[] fields = Files.readAllLines(PROCESSORS).get(0).split("\\s+");
            long busy = 0;
            for (int field : BUSY) {
                busy += Long.parseLong(fields[field]);
            }
            return busy;
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
