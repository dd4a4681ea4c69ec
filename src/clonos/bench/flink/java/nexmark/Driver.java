package nexmark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Runs SQL in one virtual machine, job after job, so that it is warm.
 *
 * <p>Arguments are options of Flink, {@code key=value}. Each line of the input is a job: statements
 * separated by semicolons, the last of which writes. Printed: "began" when its sources have begun;
 * in the end "done", the seconds from then until its sinks had ended, and how many rows they got; or
 * "failed" and why.
 */
public final class Driver {
    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            options.put(argument.substring(0, at), argument.substring(at + 1));
        }
        BufferedReader jobs =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String job = jobs.readLine(); job != null; job = jobs.readLine()) {
            try {
                run(job, Configuration.fromMap(options));
            } catch (Exception failure) {
                failure.printStackTrace();
                String reason = failure.toString().replace((char) 10, (char) 32);
                System.out.println("failed " + reason);
            }
        }
    }

    private static void run(String job, Configuration options) throws Exception {
        Marks.clear();
        TableEnvironment tables =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance().withConfiguration(options).build());
        TableResult last = null;
        for (String statement : job.split(";")) {
            last = tables.executeSql(statement);
        }
        CompletableFuture<?> end = last.getJobClient().get().getJobExecutionResult();
        while (!Marks.hasBegun() && !end.isDone()) {
            Thread.sleep(1);
        }
        System.out.println("began");
        end.get();
        System.out.println("done " + Marks.seconds() + " " + Marks.rows());
    }
}
