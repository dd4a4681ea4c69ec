package nexmark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Runs SQL in one virtual machine, job after job: it is warm from the second on.
 *
 * <p>Arguments are options of Flink, {@code key=value}. Each line of the input is a job: statements
 * separated by semicolons, the last of which writes. Printed when it has ended: "done" and what
 * {@link Gate#run} says of it, or "failed" and why.
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
                Throwable cause = failure;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                String reason = cause.toString().replace((char) 10, (char) 32);
                System.out.println("failed " + reason);
            }
        }
    }

    private static void run(String job, Configuration options) throws Exception {
        Gate.close();
        TableEnvironment tables =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance().withConfiguration(options).build());
        TableResult last = null;
        for (String statement : job.split(";")) {
            last = tables.executeSql(statement);
        }
        System.out.println(Gate.run(last.getJobClient().get(), 0));
    }
}
